# SPDX-License-Identifier: Apache-2.0
"""Resolved configuration: a frozen dataclass per owner. See `vllm/engine/arg_utils.py` for
what a user types; `EngineArgs.create_engine_config` resolves the one into the other."""

from vllm.config.cache import CacheConfig
from vllm.config.load import LoadConfig
from vllm.config.model import ModelConfig
from vllm.config.observability import ObservabilityConfig
from vllm.config.parallel import ParallelConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.config.structured_outputs import StructuredOutputsConfig
from vllm.config.vllm import VllmConfig, get_current_vllm_config, set_current_vllm_config

__all__ = [
    "CacheConfig",
    "LoadConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "SchedulerConfig",
    "StructuredOutputsConfig",
    "VllmConfig",
    "get_current_vllm_config",
    "set_current_vllm_config",
]
