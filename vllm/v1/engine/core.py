# SPDX-License-Identifier: Apache-2.0
"""The engine core: scheduler, executor and grammars, and the step that joins them.

Token ids in, token ids out; knows nothing of text, of callers or of the process it runs in.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from vllm import envs
from vllm.config import VllmConfig
from vllm.exceptions import ConfigError, EngineDeadError, VLLMError, VLLMValidationError
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import get_kv_cache_config
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.engine_tokenizer import load_tokenizer
from vllm.v1.engine.messages import EngineCoreOutputs, EngineCoreRequest, SchedulerStats
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

logger = init_logger(__name__)

# What may be called from another process, and of the worker's methods by `collective_rpc`.
UTILITIES = frozenset({"reset_prefix_cache", "collective_rpc", "get_request_counts", "get_stats"})
REMOTE_WORKER_METHODS = frozenset({"check_health"})
_IDLE_WAIT_S = 0.001


class EngineCore:
    """Runs steps.

    1. `schedule`: which requests get how many tokens.
    2. `grammar_bitmask`: which tokens the grammars allow, where one is sampled under a grammar.
    3. `execute_model`: the model and the draw.
    4. `update_from_output`: append, stop, free.

    Args:
        vllm_config: the resolved configuration.
        log_stats: attach statistics to outputs.

    Attributes:
        max_model_len: the limit in force; below the model's where the cache is too small for it
            and the user left the length to the engine.
    """

    def __init__(self, vllm_config: VllmConfig, *, log_stats: bool) -> None:
        started = time.perf_counter()
        self.executor = Executor.get_class(vllm_config)(vllm_config)
        loaded = time.perf_counter()
        try:
            kv_cache_config = self._prepare(vllm_config, log_stats)
        except BaseException:
            self.executor.shutdown()  # whoever catches the error may hold this object for long
            raise
        self._checks_integrity = envs.VLLM_CHECK_INTEGRITY
        logger.info(
            "engine core ready in %.2f s (model %.2f s, KV cache %.2f s): %d blocks hold %d "
            "tokens, %.1f requests of %d tokens at once",
            time.perf_counter() - started,
            loaded - started,
            time.perf_counter() - loaded,
            kv_cache_config.num_blocks,
            int(self.scheduler.max_concurrency * self.max_model_len),
            self.scheduler.max_concurrency,
            self.max_model_len,
        )

    def _prepare(self, vllm_config: VllmConfig, log_stats: bool) -> KVCacheConfig:
        """Allocate the cache the loaded model leaves room for, and make what plans steps on it."""
        model_config = vllm_config.model_config
        self.max_model_len, kv_cache_config = self._plan_kv_cache(vllm_config)
        self.executor.initialize_from_config(kv_cache_config)
        self.structured_outputs = StructuredOutputManager(
            model_config.vocab_size,
            lambda: load_tokenizer(model_config, download_dir=vllm_config.load_config.download_dir),
            vllm_config.structured_outputs_config,
        )
        # Engines that must step alike may not depend on when a thread has compiled a grammar.
        backend = vllm_config.parallel_config.distributed_executor_backend
        self._waits_for_grammars = backend == "external_launcher"
        limits = dataclasses.replace(vllm_config.scheduler_config, max_model_len=self.max_model_len)
        self.scheduler = Scheduler(
            limits,
            vllm_config.cache_config,
            kv_cache_config,
            self.structured_outputs,
            log_stats=log_stats,
        )
        return kv_cache_config

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request.

        Raises:
            VLLMError: it can never run, or its id is in use.
        """
        self.scheduler.add_request(request)
        if self._waits_for_grammars and request.sampling_params.structured_outputs is not None:
            self._wait_for_grammar(request.request_id)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests; unknown ids are skipped, they may just have ended."""
        self.scheduler.finish_requests(list(request_ids), RequestStatus.FINISHED_ABORTED)
        self._check_when_idle()

    def has_requests(self) -> bool:
        """Whether a step has something to do or to tell."""
        return self.scheduler.has_requests()

    def step(self) -> EngineCoreOutputs:
        """Run one step and return what it brought.

        A step that raises ends the request that caused it, not the engine. An interrupt from
        the keyboard goes on to the caller; a caller that steps again loses nothing.

        Raises:
            EngineDeadError: the workers are lost; no request is to blame, and no step follows.
        """
        scheduler_output = self.scheduler.schedule()
        try:
            results = self._execute(scheduler_output)
        except EngineDeadError:
            raise
        except Exception as error:
            logger.exception("a step failed")
            return self._recover(
                scheduler_output, f"the model failed on this request ({type(error).__name__})"
            )
        except BaseException:
            self.scheduler.restart_step(scheduler_output)
            raise
        outputs = self.scheduler.update_from_output(scheduler_output, results)
        self._check_when_idle()
        return outputs

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached prefixes; False if requests run and were not to be reset."""
        return self.scheduler.reset_prefix_cache(reset_running_requests)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call on every worker; results in the order of ranks."""
        return self.executor.collective_rpc(method, timeout, args, kwargs)

    def get_request_counts(self) -> tuple[int, int]:
        """Running and waiting requests."""
        return self.scheduler.get_request_counts()

    def get_stats(self) -> SchedulerStats:
        """State now; counters are since the last report."""
        return self.scheduler.make_stats()

    def call_utility(self, method: str, args: Sequence[Any]) -> Any:
        """A utility called by name from another process.

        Raises:
            VLLMValidationError: the name is not on the list.
        """
        is_allowed = method in UTILITIES
        if method == "collective_rpc":
            is_allowed = bool(args) and args[0] in REMOTE_WORKER_METHODS
        if not is_allowed:
            name = args[0] if method == "collective_rpc" and args else method
            raise VLLMValidationError(
                f"{name!r} cannot be called from outside the engine; allowed are "
                f"{', '.join(sorted(UTILITIES | REMOTE_WORKER_METHODS))}",
                parameter="method",
            )
        return getattr(self, method)(*args)

    def check_health(self) -> None:
        """Raise `EngineDeadError` if the workers cannot run steps any more."""
        self.executor.check_health()

    def shutdown(self) -> None:
        """Release what the workers hold."""
        self.executor.shutdown()

    def _execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        if not scheduler_output.total_num_scheduled_tokens:
            if self.scheduler.has_requests():
                time.sleep(_IDLE_WAIT_S)  # grammars are being compiled
            return EMPTY_MODEL_RUNNER_OUTPUT
        requests = self.scheduler.requests_of(scheduler_output.grammar_req_ids)
        grammar_output = self.structured_outputs.grammar_bitmask(requests)
        return self.executor.execute_model(scheduler_output, grammar_output)

    def _wait_for_grammar(self, request_id: str) -> None:
        """Return when the grammar is compiled, or has failed, which the next step tells."""
        request = self.scheduler.requests[request_id]
        with suppress(VLLMError):
            while not self.structured_outputs.is_ready(request):
                time.sleep(_IDLE_WAIT_S)

    def _recover(self, scheduler_output: SchedulerOutput, error: str) -> EngineCoreOutputs:
        outputs = self.scheduler.recover_from_failed_step(scheduler_output, error)
        return EngineCoreOutputs(outputs=outputs, scheduler_stats=self.get_stats())

    def _check_when_idle(self) -> None:
        if self._checks_integrity and not self.scheduler.has_requests():
            self.scheduler.check_integrity()

    def _plan_kv_cache(self, vllm_config: VllmConfig) -> tuple[int, KVCacheConfig]:
        """The length in force and the cache that serves it."""
        specs = self.executor.get_kv_cache_specs()
        available = self.executor.determine_available_memory()
        wanted = vllm_config.model_config.max_model_len

        def plan(max_model_len: int) -> KVCacheConfig:
            return _plan(vllm_config, specs, available, max_model_len)

        if not vllm_config.model_config.auto_max_model_len:
            return wanted, plan(wanted)
        length = _largest_length_that_fits(plan, wanted)
        if length < wanted:
            logger.info("max_model_len: %d, what the KV cache holds of %d", length, wanted)
        return length, plan(length)


def _plan(
    vllm_config: VllmConfig, specs: dict[str, KVCacheSpec], available: int, max_model_len: int
) -> KVCacheConfig:
    limits = vllm_config.scheduler_config
    return get_kv_cache_config(
        specs,
        available,
        vllm_config.cache_config,
        max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )


def _largest_length_that_fits(plan: Callable[[int], KVCacheConfig], wanted: int) -> int:
    """The largest length up to `wanted` that `plan` accepts; 1 if it accepts none."""
    low, high = 1, wanted
    while low < high:
        middle = (low + high + 1) // 2
        try:
            plan(middle)
        except ConfigError:
            high = middle - 1
        else:
            low = middle
    return low


def describe_failure(error: BaseException) -> tuple[str, str]:
    """Class name and message of an error, in words fit for a user."""
    if isinstance(error, VLLMError):
        return type(error).__name__, str(error)
    return type(error).__name__, f"{type(error).__name__}: {error}"
