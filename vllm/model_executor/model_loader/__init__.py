# SPDX-License-Identifier: Apache-2.0
"""Filling models from checkpoints."""

from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.loaders import (
    DefaultModelLoader,
    GGUFModelLoader,
    get_model_loader,
)

__all__ = [
    "BaseModelLoader",
    "DefaultModelLoader",
    "DummyModelLoader",
    "GGUFModelLoader",
    "get_model_loader",
]
