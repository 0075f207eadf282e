# SPDX-License-Identifier: Apache-2.0
"""The whole resolved configuration, and the one in force while a model is being built.

Components take the part they need, not the whole tree; only those that build others hold it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from vllm.config.cache import CacheConfig
from vllm.config.load import LoadConfig
from vllm.config.model import ModelConfig
from vllm.config.observability import ObservabilityConfig
from vllm.config.parallel import ParallelConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.config.structured_outputs import StructuredOutputsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmConfig:
    """Everything an engine is built from.

    Attributes:
        attention_backend: name the user asked for, or None for the selector's choice.
        static_forward_context: attention layers by name; filled while the model is built.
    """

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    load_config: LoadConfig = field(default_factory=LoadConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    structured_outputs_config: StructuredOutputsConfig = field(
        default_factory=StructuredOutputsConfig
    )
    observability_config: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    attention_backend: str | None = None
    static_forward_context: dict[str, Any] = field(default_factory=dict, compare=False)


_current: ContextVar[VllmConfig | None] = ContextVar("current_vllm_config", default=None)


@contextmanager
def set_current_vllm_config(vllm_config: VllmConfig) -> Iterator[None]:
    """Make `vllm_config` the one that layers built inside the block read.

    Raises:
        RuntimeError: a model is already being built in this context.
    """
    if _current.get() is not None:
        raise RuntimeError("a model is already being built: set_current_vllm_config nests")
    token = _current.set(vllm_config)
    try:
        yield
    finally:
        _current.reset(token)


def get_current_vllm_config() -> VllmConfig:
    """The configuration in force.

    Raises:
        RuntimeError: called outside `set_current_vllm_config`.
    """
    config = _current.get()
    if config is None:
        raise RuntimeError("no model is being built: use set_current_vllm_config")
    return config
