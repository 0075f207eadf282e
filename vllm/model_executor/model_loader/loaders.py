# SPDX-License-Identifier: Apache-2.0
"""From a path to a filled model: which source, and that the load is accounted for."""

import math
import zlib
from abc import ABC, abstractmethod

import torch
from torch import nn

from vllm.config import LoadConfig, ModelConfig
from vllm.exceptions import ConfigError
from vllm.model_executor.model_loader.accounting import account_load
from vllm.model_executor.model_loader.gguf_loader import gguf_weights_iterator
from vllm.model_executor.model_loader.safetensors_source import safetensors_weights_iterator
from vllm.model_executor.model_loader.weight_source import WeightSource
from vllm.transformers_utils.repo_utils import find_weights


class BaseModelLoader(ABC):
    """Fills a built model. Called again, it fills it anew from the files as they are then."""

    def __init__(self, load_config: LoadConfig) -> None:
        self.load_config = load_config

    @abstractmethod
    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Fill every parameter of `model`.

        Raises:
            ModelLoadError: checkpoint and model do not match, or a file is damaged.
        """


class SourceModelLoader(BaseModelLoader):
    """A loader that reads a source of weights through the model's own `load_weights`."""

    @abstractmethod
    def get_all_weights(self, model_config: ModelConfig) -> WeightSource:
        """The checkpoint's tensors."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        load = getattr(model, "load_weights", None)
        if load is None:
            raise ConfigError(f"{type(model).__name__} has no load_weights and cannot be filled")
        account_load(model, self.get_all_weights(model_config), load)


class DefaultModelLoader(SourceModelLoader):
    """What the folder holds: safetensors, or one GGUF file if the format is "auto"."""

    def get_all_weights(self, model_config: ModelConfig) -> WeightSource:
        found = find_weights(model_config.path, self.load_config.load_format)
        if found.format == "gguf":
            return gguf_weights_iterator(found.path, model_config.dtype)
        return safetensors_weights_iterator(found.files, found.index)


class GGUFModelLoader(SourceModelLoader):
    """One GGUF file, unpacked into the model's dtype."""

    def get_all_weights(self, model_config: ModelConfig) -> WeightSource:
        found = find_weights(model_config.path, "gguf")
        return gguf_weights_iterator(found.path, model_config.dtype)


class DummyModelLoader(BaseModelLoader):
    """Random weights: each a function of its parameter's name and shape, on any device.

    Matrices keep the scale of their input, so that activations stay of order one; what is named
    norm lies around one; other vectors are of order one.
    """

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        with torch.no_grad():
            for name, param in model.named_parameters():
                param.copy_(self.draw(name, param))

    @staticmethod
    def draw(name: str, param: torch.Tensor) -> torch.Tensor:
        """The values of one parameter, fp32 (or the parameter's own dtype, if no float) on the CPU.

        Raises:
            ConfigError: no rule for parameters of this dtype.
        """
        if not param.is_floating_point():
            raise ConfigError(f"{name}: load_format='dummy' cannot draw {param.dtype} values")
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = torch.empty(param.shape, dtype=torch.float32)
        noise.uniform_(-math.sqrt(3), math.sqrt(3), generator=generator)  # variance 1
        if param.dim() >= 2:
            return noise.div_(math.sqrt(param.shape[-1]))
        return noise.mul_(0.1).add_(1.0) if "norm" in name else noise


def get_model_loader(load_config: LoadConfig) -> BaseModelLoader:
    """The loader for a format."""
    if load_config.load_format == "dummy":
        return DummyModelLoader(load_config)
    if load_config.load_format == "gguf":
        return GGUFModelLoader(load_config)
    return DefaultModelLoader(load_config)
