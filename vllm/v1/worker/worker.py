# SPDX-License-Identifier: Apache-2.0
"""A process's share of the model: device, weights, cache memory and steps."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.model_loader.build import get_model
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.memory import (
    MemoryNeeds,
    available_cache_bytes,
    estimate_activations,
    weights_bytes,
)
from vllm.v1.worker.model_runner import ModelRunner

logger = init_logger(__name__)

R = TypeVar("R")


class Worker:
    """Runs one rank. Call order: `init_device`, `load_model`, `initialize_from_config`, steps."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config
        self.device: torch.device | None = None
        self._model_runner: ModelRunner | None = None

    @property
    def model_runner(self) -> ModelRunner:
        """The runner; there is one once the model is loaded."""
        assert self._model_runner is not None, "the model is not loaded"
        return self._model_runner

    def init_device(self) -> None:
        """Take the device this platform offers."""
        self.device = current_platform().init_device()

    def load_model(self) -> None:
        """Build the model and read its weights."""
        assert self.device is not None, "init_device comes first"
        started = time.perf_counter()
        model = get_model(self.vllm_config, self.device)
        self._model_runner = ModelRunner(self.vllm_config, model, self.device)
        logger.debug("model ready in %.2f s", time.perf_counter() - started)

    def get_model(self) -> nn.Module:
        """The model."""
        return self.model_runner.model

    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """What each attention layer keeps in the cache, by name."""
        return self.model_runner.get_kv_cache_specs()

    def determine_available_memory(self) -> int:
        """Bytes the KV cache may take.

        Raises:
            ConfigError: the memory this process may use leaves none.
        """
        model, platform = self.model_runner.model, current_platform()
        specs = self.get_kv_cache_specs()
        needs = MemoryNeeds(
            weights=weights_bytes(model),
            activations=estimate_activations(model, self.vllm_config, specs),
        )
        return available_cache_bytes(
            self.vllm_config.cache_config,
            platform.get_device_memory(),
            needs,
            on_cpu=platform.is_cpu(),
        )

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache."""
        self.model_runner.initialize_kv_cache(kv_cache_config)

    def execute_model(
        self, scheduler_output: SchedulerOutput, grammar_output: GrammarOutput | None = None
    ) -> ModelRunnerOutput:
        """Run one step."""
        return self.model_runner.execute_model(scheduler_output, grammar_output)

    def apply_model(self, func: Callable[[nn.Module], R]) -> R:
        """Call `func` with the model."""
        return func(self.get_model())

    def check_health(self) -> None:
        """Raise if this rank cannot run steps; in this process it always can."""

    def shutdown(self) -> None:
        """Drop the model and the cache; layers that are held elsewhere keep no cache."""
        if self._model_runner is not None:
            for layer in self._model_runner.attention_layers.values():
                layer.bind_kv_cache(torch.empty(0))
            self._model_runner = None

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method by name, or a function with this worker as its first argument."""
        if callable(method):
            return method(self, *args, **kwargs)
        return getattr(self, method)(*args, **kwargs)
