# SPDX-License-Identifier: Apache-2.0
"""From a resolved configuration to a model that is ready to run.

Owns the order of the steps, not their content: the registry knows classes, the loader knows
files, layers know how to prepare themselves.
"""

import time

import torch
from torch import nn

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.models.registry import ModelRegistry

logger = init_logger(__name__)


def get_model(vllm_config: VllmConfig, device: torch.device | str = "cpu") -> nn.Module:
    """Build the model, fill every parameter from the checkpoint, and prepare the layers.

    Raises:
        ConfigError: the model or something it needs is not supported.
        ModelLoadError: checkpoint and model do not match.
    """
    started = time.perf_counter()
    model_config = vllm_config.model_config
    model = initialize_model(vllm_config, torch.device(device))
    built = time.perf_counter()
    get_model_loader(vllm_config.load_config).load_weights(model, model_config)
    process_weights_after_loading(model, model_config.dtype)
    logger.info(
        "%s: built in %.2f s, weights loaded in %.2f s (%.0f MiB)",
        model_config.architecture,
        built - started,
        time.perf_counter() - built,
        sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20,
    )
    return model.eval()


def initialize_model(vllm_config: VllmConfig, device: torch.device) -> nn.Module:
    """Build the model with uninitialised parameters of the model's dtype on `device`."""
    model_cls = ModelRegistry.resolve_model_cls(vllm_config.model_config.architecture)
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(vllm_config.model_config.dtype)
    try:
        with set_current_vllm_config(vllm_config), device:
            model: nn.Module = model_cls(vllm_config=vllm_config)
    finally:
        torch.set_default_dtype(default_dtype)
    return model.requires_grad_(False)


def process_weights_after_loading(model: nn.Module, act_dtype: torch.dtype) -> None:
    """Let each layer derive what it keeps beside its parameters; also run after a reload."""
    for module in model.modules():
        hook = getattr(module, "process_weights_after_loading", None)
        if hook is not None:
            hook(act_dtype)
