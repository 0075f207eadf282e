# SPDX-License-Identifier: Apache-2.0
"""Decides the steps and takes their results.

Owns the requests and their life. Blocks are the KV cache manager's, tensors the worker's.

The one rule: a request has tokens and computed tokens, and each step lets it catch up. Prompts
in chunks, prefix hits, decoding and the return of a preempted request are all that rule, which
stands in `planner`.
"""

import time
from collections.abc import Iterable

from vllm.config.cache import CacheConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_config import max_concurrency
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.admission import check_can_ever_run
from vllm.v1.core.sched.grammar_gate import GrammarGate, GrammarManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.planner import StepPlanner
from vllm.v1.core.sched.step_results import (
    append_until_stop,
    first_logprobs,
    gather_prompt_logprobs,
    make_output,
    result_error,
    take_prompt_logprobs,
)
from vllm.v1.core.sched.suspects import Suspects
from vllm.v1.engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulerStats,
)
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

logger = init_logger(__name__)


class Scheduler:
    """The life of requests, from the queue to the message that they have ended.

    Every unfinished request is in exactly one place, told by its status: the planner's `running`
    or `waiting` queue (the latter also after a preemption; it holds no blocks there), or behind
    the `grammar` gate.

    Args:
        scheduler_config: limits and policy.
        cache_config: prefix caching and watermark.
        kv_cache_config: the cache's blocks and groups.
        structured_output_manager: compiles and judges grammars.
        log_stats: attach statistics to each step's outputs.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        kv_cache_config: KVCacheConfig,
        structured_output_manager: GrammarManager,
        *,
        log_stats: bool,
    ) -> None:
        self.limits = scheduler_config
        in_flight = scheduler_config.max_num_batched_tokens
        self.kv_cache_manager = KVCacheManager(
            kv_cache_config,
            in_flight,
            enable_caching=cache_config.enable_prefix_caching,
            watermark=cache_config.watermark,
        )
        self.max_concurrency = max_concurrency(
            kv_cache_config, scheduler_config.max_model_len, in_flight
        )
        self.requests: dict[str, Request] = {}
        self.planner = StepPlanner(scheduler_config, self.kv_cache_manager)
        self.grammar = GrammarGate(structured_output_manager)
        self.suspects = Suspects()
        self.log_stats = log_stats
        self._num_arrived = 0
        # Requests that ended outside a step's results, to be told with the next ones.
        self._pending_outputs: list[EngineCoreOutput] = []

    def add_request(self, core_request: EngineCoreRequest) -> None:
        """Queue a request.

        Raises:
            VLLMValidationError: its id is in use, or it can never run.
        """
        req_id = core_request.request_id
        if req_id in self.requests:
            raise VLLMValidationError(
                f"request_id={req_id!r} is in use; pass another", parameter="request_id"
            )
        check_can_ever_run(core_request, self.limits.max_model_len, self.kv_cache_manager)
        request = Request.from_engine_core_request(core_request, self.kv_cache_manager.hash_blocks)
        request.queued_ts = time.monotonic()
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        if not self.grammar.holds(request):
            self.planner.waiting.add_request(request)
        self.requests[req_id] = request

    def schedule(self) -> SchedulerOutput:
        """The next step: every request gets tokens until it has caught up.

        An output without tokens needs no execution, but `update_from_output` all the same:
        requests may have ended. Requests count the step's tokens as computed from here on.
        """
        self._open_grammar_gate()
        suspect = self.suspects.next
        plan = self.planner.plan(alone=None if suspect is None else self.requests[suspect])
        if not plan:
            self._end_if_stalled()
        return self.planner.build(plan)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> EngineCoreOutputs:
        """Take a step's results: append tokens, end what has ended.

        A request that was aborted while the step ran is skipped, even if its id is in use anew.
        """
        outputs, self._pending_outputs = self._pending_outputs, []
        for req_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(req_id)
            if request is None or request.status is not RequestStatus.RUNNING:
                continue
            output = self._take_result(request, model_runner_output)
            if output is not None:
                outputs.append(output)
                if len(scheduler_output.num_scheduled_tokens) == 1:
                    self.suspects.clear(req_id)
        return EngineCoreOutputs(
            outputs=outputs,
            scheduler_stats=self.make_stats() if self.log_stats else None,
        )

    def finish_requests(
        self, request_ids: str | Iterable[str], status: RequestStatus
    ) -> list[EngineCoreOutput]:
        """End requests from outside (an abort). Unknown ids are skipped: they may just have
        ended by themselves."""
        assert status.is_finished, f"{status!r} does not end a request"
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        requests = [self.requests[i] for i in dict.fromkeys(ids) if i in self.requests]
        return [self._finish(request, status) for request in requests]

    def recover_from_failed_step(
        self, scheduler_output: SchedulerOutput, error: str
    ) -> list[EngineCoreOutput]:
        """The step raised as a whole: find the culprit without harm to the others.

        A request that was alone in the step ends with an error. Else all of them start over and
        become suspects, to be run one at a time. Nothing they hold stays in the prefix cache:
        the step may have written to any of it.

        Args:
            error: what failed, in words fit for a client.
        """
        outputs, self._pending_outputs = self._pending_outputs, []
        live = self._running_of(scheduler_output)
        if len(scheduler_output.num_scheduled_tokens) == 1:
            self.planner.drop_again(scheduler_output)
            return outputs + [self._fail(request, error) for request in live]
        logger.error("a step of %d requests failed, each is tried alone: %s", len(live), error)
        self.restart_step(scheduler_output)
        self.suspects.add(request.request_id for request in live)
        return outputs

    def restart_step(self, scheduler_output: SchedulerOutput) -> None:
        """The step broke off by no fault of its requests: all of them start over.

        Nothing they hold stays in the prefix cache: the step may have written to any of it.
        """
        self.planner.drop_again(scheduler_output)
        for request in self._running_of(scheduler_output):
            self.kv_cache_manager.discard(request)
            self.planner.preempt(request)

    def requests_of(self, req_ids: Iterable[str]) -> list[Request]:
        """The unfinished requests among `req_ids`, in that order."""
        return [self.requests[req_id] for req_id in req_ids if req_id in self.requests]

    def has_requests(self) -> bool:
        """Whether a further step has something to do or to tell."""
        return bool(self.requests or self._pending_outputs)

    def get_request_counts(self) -> tuple[int, int]:
        """Running requests, and those that wait for a place or a grammar."""
        planner = self.planner
        return len(planner.running), len(planner.waiting) + len(self.grammar)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes.

        Args:
            reset_running_requests: let the running requests start over. Without it the reset is
                refused (False) while any runs, since its blocks are in use.
        """
        if reset_running_requests:
            for request in tuple(self.planner.running):
                self.planner.preempt(request)
        return self.kv_cache_manager.reset_prefix_cache()

    def make_stats(self) -> SchedulerStats:
        """State now, and counters since the last call."""
        num_running, num_waiting = self.get_request_counts()
        num_preemptions, self.planner.num_preemptions = self.planner.num_preemptions, 0
        return SchedulerStats(
            num_running_reqs=num_running,
            num_waiting_reqs=num_waiting,
            kv_cache_usage=self.kv_cache_manager.usage,
            num_preemptions=num_preemptions,
            prefix_cache_stats=self.kv_cache_manager.make_prefix_cache_stats(),
        )

    def check_integrity(self) -> None:
        """Compare queues, requests and blocks; for use between steps.

        Raises:
            AssertionError: naming what differs.
        """
        running, waiting = tuple(self.planner.running), (*self.planner.waiting, *self.grammar)
        placed = [*running, *waiting]
        assert len(placed) == len(self.requests), f"{len(placed)} placed, {len(self.requests)} live"
        for request in placed:
            is_known = self.requests.get(request.request_id) is request
            assert is_known, f"{request.request_id} is lost"
            assert 0 <= request.num_computed_tokens <= request.num_tokens
        assert all(r.status is RequestStatus.RUNNING for r in running), "idle in running"
        for request in waiting:
            held = self.kv_cache_manager.get_block_ids(request.request_id)
            assert not any(held), f"{request.request_id} waits and holds blocks"
            assert request.num_computed_tokens == 0, f"{request.request_id} waits, half computed"
        assert len(running) <= self.limits.max_num_seqs, "too many running"
        self.kv_cache_manager.check_integrity(placed)

    def _running_of(self, scheduler_output: SchedulerOutput) -> list[Request]:
        """The step's requests that have not ended meanwhile."""
        scheduled = self.requests_of(scheduler_output.num_scheduled_tokens)
        return [r for r in scheduled if r.status is RequestStatus.RUNNING]

    def _take_result(self, request: Request, results: ModelRunnerOutput) -> EngineCoreOutput | None:
        """One request's results; None while it is inside its prompt."""
        error = result_error(request, results)
        if error is not None:
            return self._fail(request, error)
        self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
        gather_prompt_logprobs(request, results)
        drawn = results.sampled_token_ids.get(request.request_id)
        if not drawn:
            return None
        prompt_logprobs = take_prompt_logprobs(request)
        new_token_ids, status = append_until_stop(request, drawn, self.limits.max_model_len)
        # The token that stops need not be one of the grammar's.
        is_stopped = status is RequestStatus.FINISHED_STOPPED
        if not self.grammar.advance(request, new_token_ids[:-1] if is_stopped else new_token_ids):
            return self._fail(request, "the output left the grammar it was constrained to")
        if status is None and self.grammar.is_complete(request):
            status = RequestStatus.FINISHED_STOPPED
        if status is not None:
            self._finish(request, status)
        return make_output(
            request,
            new_token_ids,
            new_logprobs=first_logprobs(
                results.logprobs.get(request.request_id), len(new_token_ids)
            ),
            new_prompt_logprobs=prompt_logprobs,
        )

    def _finish(
        self, request: Request, status: RequestStatus, error: str | None = None
    ) -> EngineCoreOutput:
        """End a request from whatever state: the one way out."""
        if request.status is not RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            self.planner.remove(request)
        self.grammar.forget(request)
        self.suspects.clear(request.request_id)
        del self.requests[request.request_id]
        request.status, request.error = status, error
        return make_output(request)

    def _fail(self, request: Request, error: str) -> EngineCoreOutput:
        """End a request whose own computation failed; its blocks may hold anything."""
        logger.error("request %s failed: %s", request.request_id, error)
        self.kv_cache_manager.discard(request)
        return self._finish(request, RequestStatus.FINISHED_ERROR, error)

    def _open_grammar_gate(self) -> None:
        ready, failed = self.grammar.release()
        for request in ready:
            self.planner.waiting.add_request(request)
        for request, error in failed:
            self._pending_outputs.append(self._fail(request, error))

    def _end_if_stalled(self) -> None:
        """A step without tokens while requests could run cannot be; should it, end the first."""
        for request in (*self.planner.running, *self.planner.waiting):
            logger.error("nothing can be scheduled: %s is ended", request.request_id)
            self._pending_outputs.append(self._fail(request, "the scheduler made no progress"))
            break
