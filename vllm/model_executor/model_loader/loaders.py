# SPDX-License-Identifier: Apache-2.0
"""From a path to a filled model: which source, and that the load is accounted for."""

from abc import abstractmethod

from torch import nn

from vllm.config import LoadConfig, ModelConfig
from vllm.exceptions import ConfigError
from vllm.model_executor.model_loader.accounting import account_load
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.gguf_loader import gguf_weights_iterator
from vllm.model_executor.model_loader.mxfp4 import is_mxfp4, unpack_mxfp4
from vllm.model_executor.model_loader.safetensors_source import safetensors_weights_iterator
from vllm.model_executor.model_loader.weight_source import WeightSource
from vllm.transformers_utils.repo_utils import find_weights


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
        weights = safetensors_weights_iterator(found.files, found.index)
        if is_mxfp4(model_config.hf_config):
            return unpack_mxfp4(weights, model_config.dtype)
        return weights


class GGUFModelLoader(SourceModelLoader):
    """One GGUF file, unpacked into the model's dtype."""

    def get_all_weights(self, model_config: ModelConfig) -> WeightSource:
        found = find_weights(model_config.path, "gguf")
        return gguf_weights_iterator(found.path, model_config.dtype)


def get_model_loader(load_config: LoadConfig) -> BaseModelLoader:
    """The loader for a format."""
    if load_config.load_format == "dummy":
        return DummyModelLoader(load_config)
    if load_config.load_format == "gguf":
        return GGUFModelLoader(load_config)
    return DefaultModelLoader(load_config)
