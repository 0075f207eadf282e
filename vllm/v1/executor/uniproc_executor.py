# SPDX-License-Identifier: Apache-2.0
"""One worker in the calling process: the only one, or one of several that were started apart."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from vllm.config import ParallelConfig
from vllm.distributed.launch import LauncherRank, launcher_rank
from vllm.distributed.parallel_state import get_tp_group
from vllm.exceptions import ConfigError, EngineDeadError, VLLMError
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.messages import step_fingerprint
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker import Worker

R = TypeVar("R")

_FAILED = -1  # stands where the fingerprint of the next step would; those are not negative


class UniProcExecutor(Executor):
    """Calls its one worker directly.

    Attributes:
        driver_worker: the worker.
    """

    driver_worker: Worker

    def _init_executor(self) -> None:
        self.driver_worker = self._make_worker()
        try:
            self._start_worker()
        except BaseException:
            self.shutdown()  # leaves the group of ranks, so that the process may try again
            raise

    def _start_worker(self) -> None:
        self.driver_worker.init_device()
        self.driver_worker.load_model()

    def _make_worker(self) -> Worker:
        return Worker(self.vllm_config)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call on the worker; it runs in this thread, so `timeout` has nothing to wait for."""
        return [self.driver_worker.call(method, *args, **(kwargs or {}))]

    def check_health(self) -> None:
        """Raise if the worker cannot run steps."""
        self.driver_worker.check_health()

    def shutdown(self) -> None:
        """Drop the model and the cache."""
        self.driver_worker.shutdown()


class ExecutorWithExternalLauncher(UniProcExecutor):
    """One rank of several that a launcher such as torchrun has started.

    Every rank has a whole engine of its own and must be given the same requests in the same
    order: the engines then decide alike, step for step. What could part them is agreed on: the
    size of the KV cache is the smallest, and before a step the ranks compare what it holds, so
    that unlike requests are an error and not a wait without end. A step that fails may be tried
    again if it failed on all of them.

    `collective_rpc` reaches this rank only; the caller's program runs on all of them.
    """

    def _start_worker(self) -> None:
        self.driver_worker.init_device()
        self._has_peers = self.vllm_config.parallel_config.tensor_parallel_size > 1
        self._together("load the model", self.driver_worker.load_model)

    def _make_worker(self) -> Worker:
        place = launcher_rank()
        _check_world(place, self.vllm_config.parallel_config)
        return Worker(
            self.vllm_config,
            local_rank=place.local_rank,
            rank=place.rank,
            world_size=place.world_size,
            local_world_size=place.local_world_size,
        )

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: what the rank with the least can give."""
        own = self._together("size the KV cache", self.driver_worker.determine_available_memory)
        return min(get_tp_group().all_gather_ints(own)) if self._has_peers else own

    def execute_model(
        self, scheduler_output: SchedulerOutput, grammar_output: GrammarOutput | None = None
    ) -> ModelRunnerOutput:
        """Run one step, if it is the same on every rank.

        Raises:
            EngineDeadError: it is not, or the last one failed on some ranks and not on others.
        """
        if not self._has_peers:
            return super().execute_model(scheduler_output, grammar_output)
        self._agree(step_fingerprint(scheduler_output, grammar_output))
        try:
            return super().execute_model(scheduler_output, grammar_output)
        except Exception:
            self._agree(_FAILED)
            raise

    def _agree(self, own: int) -> None:
        """Compare what the ranks are about to do, or that it has failed."""
        told = get_tp_group().all_gather_ints(own)
        if _FAILED in told and set(told) != {_FAILED}:
            ranks = [rank for rank, value in enumerate(told) if value == _FAILED]
            raise EngineDeadError(
                f"ranks {ranks} failed in a step that the others ended; their messages say why"
            )
        if len(set(told)) > 1:
            raise EngineDeadError(
                "the ranks are about to run different steps; with "
                "distributed_executor_backend='external_launcher' every rank must be given "
                "the same prompts and sampling parameters, in the same order"
            )

    def _together(self, what: str, function: Callable[[], R]) -> R:
        """Call `function`; raises on every rank if it raises on one.

        Ranks that wait for the failed one inside `function` do so until the collective's timeout.
        """
        if not self._has_peers:
            return function()
        error: VLLMError | None = None
        try:
            result = function()
        except VLLMError as caught:
            error = caught
        failed = get_tp_group().all_gather_ints(int(error is not None))
        if error is not None:
            raise error
        if any(failed):
            ranks = [rank for rank, has_failed in enumerate(failed) if has_failed]
            raise ConfigError(f"ranks {ranks} could not {what}; their messages say why")
        return result


def _check_world(place: LauncherRank, config: ParallelConfig) -> None:
    if place.world_size % config.tensor_parallel_size:
        raise ConfigError(
            f"the launcher started {place.world_size} ranks, which do not divide by "
            f"tensor_parallel_size={config.tensor_parallel_size}"
        )
