# SPDX-License-Identifier: Apache-2.0
"""What the engine core asks of the ranks that run the model, however many there are."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput


class Executor(ABC):
    """Starts the workers and speaks to them as one."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config
        self._init_executor()

    @staticmethod
    def get_class(vllm_config: VllmConfig) -> type["Executor"]:
        """The executor the configuration names."""
        name = vllm_config.parallel_config.distributed_executor_backend
        if name == "mp":
            from vllm.v1.executor.multiproc_executor import MultiprocExecutor

            return MultiprocExecutor
        if name == "ray":
            from vllm.v1.executor.ray_executor import RayDistributedExecutor

            return RayDistributedExecutor
        if name == "external_launcher":
            from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

            return ExecutorWithExternalLauncher
        assert name == "uni", f"the configuration let {name!r} pass"
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        return UniProcExecutor

    @abstractmethod
    def _init_executor(self) -> None:
        """Start the workers and load the model."""

    @abstractmethod
    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call on every worker.

        Args:
            method: name of a worker's method; where the worker is in this process also a
                function, called with the worker first.
            timeout: seconds to wait for the last worker; None waits.

        Returns:
            Results in the order of ranks.
        """

    @abstractmethod
    def check_health(self) -> None:
        """Raise if a worker cannot run steps."""

    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """What each attention layer keeps in the cache; the same on every rank."""
        specs: dict[str, KVCacheSpec] = self.collective_rpc("get_kv_cache_specs")[0]
        return specs

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: what the rank with the least can give."""
        sizes: list[int] = self.collective_rpc("determine_available_memory")
        return min(sizes)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache."""
        self.collective_rpc("initialize_from_config", args=(kv_cache_config,))

    def execute_model(
        self, scheduler_output: SchedulerOutput, grammar_output: GrammarOutput | None = None
    ) -> ModelRunnerOutput:
        """Run one step."""
        output: ModelRunnerOutput = self.collective_rpc(
            "execute_model", args=(scheduler_output, grammar_output)
        )[0]
        return output

    @abstractmethod
    def shutdown(self) -> None:
        """Release what the workers hold; steps are over."""
