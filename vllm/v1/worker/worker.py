# SPDX-License-Identifier: Apache-2.0
"""A process's share of the model: device, weights, cache memory and steps."""

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from vllm import _custom_ops
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.distributed.utils import memory_per_rank, threads_per_rank
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

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int = 0,
        rank: int = 0,
        distributed_init_method: str = "env://",
        *,
        world_size: int | None = None,
        local_world_size: int = 1,
    ) -> None:
        """Know the place; nothing is taken yet.

        Args:
            vllm_config: the resolved configuration.
            local_rank: number of this rank on its machine.
            rank: number of this rank in the world.
            distributed_init_method: where the ranks meet.
            world_size: ranks of the world; None: one engine's. A launcher's world may hold
                several engines, each of consecutive ranks.
            local_world_size: ranks on this machine.
        """
        self.vllm_config = vllm_config
        self.local_rank = local_rank
        self.rank = rank
        self.distributed_init_method = distributed_init_method
        tp_size = vllm_config.parallel_config.tensor_parallel_size
        self.world_size = tp_size if world_size is None else world_size
        self.local_world_size = local_world_size
        self.device: torch.device | None = None
        self._model_runner: ModelRunner | None = None

    @property
    def model_runner(self) -> ModelRunner:
        """The runner; there is one once the model is loaded."""
        assert self._model_runner is not None, "the model is not loaded"
        return self._model_runner

    def init_device(self) -> None:
        """Take the device this platform offers, and meet the other ranks."""
        platform = current_platform()
        self.device = platform.init_device()
        if platform.is_cpu() and _custom_ops.is_available():
            logger.info("kernels: compiled, for instruction set %s", _custom_ops.isa())
        if platform.is_cpu() and self.local_world_size > 1 and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(threads_per_rank(self.local_world_size))
        tp_size = self.vllm_config.parallel_config.tensor_parallel_size
        if tp_size > 1:
            backend = "gloo" if platform.is_cpu() else "nccl"
            init_distributed_environment(
                self.world_size, self.rank, self.distributed_init_method, backend
            )
            initialize_model_parallel(tp_size, backend, self.device)

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
        """Bytes the KV cache of this rank may take.

        Raises:
            ConfigError: the memory this process may use leaves none.
        """
        model, platform = self.model_runner.model, current_platform()
        specs = self.get_kv_cache_specs()
        needs = MemoryNeeds(
            weights=weights_bytes(model),
            activations=estimate_activations(model, self.vllm_config, specs),
        )
        memory = platform.get_device_memory()
        return available_cache_bytes(
            self.vllm_config.cache_config,
            memory_per_rank(memory, self.local_world_size) if platform.is_cpu() else memory,
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
        """Drop the model and the cache, and leave the other ranks; layers that are held
        elsewhere keep no cache."""
        if self._model_runner is not None:
            for layer in self._model_runner.attention_layers.values():
                layer.bind_kv_cache(torch.empty(0))
            self._model_runner = None
        destroy_distributed_environment()

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method by name, or a function with this worker as its first argument."""
        if callable(method):
            return method(self, *args, **kwargs)
        return getattr(self, method)(*args, **kwargs)
