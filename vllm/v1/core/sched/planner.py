# SPDX-License-Identifier: Apache-2.0
"""Puts a step together: who gets tokens, who is let in, who gives up its blocks.

Owns the running and waiting queues. Blocks are the KV cache manager's; how a request begins and
ends is the scheduler's.

Nothing stalls. The first running request always gets its tokens, since all others give up their
blocks for it; with none running the first waiting one has the whole pool, into which it fits, or
it would have been refused.
"""

import time

from vllm.config.scheduler import SchedulerConfig
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.core.sched.step_plan import StepPlan
from vllm.v1.request import Request, RequestStatus


class StepPlanner:
    """The scheduling rule.

    Args:
        limits: the step's limits and the policy.
        kv_cache_manager: where blocks come from.
    """

    def __init__(self, limits: SchedulerConfig, kv_cache_manager: KVCacheManager) -> None:
        self.limits = limits
        self.kv_cache_manager = kv_cache_manager
        self.waiting = create_request_queue(limits.policy)
        self.running = create_request_queue(limits.policy)
        self.num_preemptions = 0
        # Rows the worker is to drop before the next step that has tokens; some come back.
        self._gone_req_ids: set[str] = set()
        self._preempted_req_ids: set[str] = set()

    def plan(self, alone: Request | None = None) -> StepPlan:
        """Give every request tokens until it has caught up; running requests first.

        Args:
            alone: the only request to run, others make room for it; None for all.
        """
        plan = StepPlan(self.limits, alone)
        if alone is not None:
            is_running = alone.status is RequestStatus.RUNNING
            (self._grow_or_preempt if is_running else self._admit)(alone, plan)
            return plan
        for request in tuple(self.running):
            if request.status is RequestStatus.RUNNING:
                self._grow_or_preempt(request, plan)
        while self.waiting and not plan.has_preempted:
            if not self._admit(self.waiting.peek_request(), plan):
                break
        return plan

    def build(self, plan: StepPlan) -> SchedulerOutput:
        """The step for the worker; its tokens count as computed from here on.

        A step without tokens is empty altogether, so that it need not be executed: the worker
        hears of dropped rows with the next one that it does execute.
        """
        if not plan:
            return SchedulerOutput()
        gone, preempted = self._gone_req_ids, self._preempted_req_ids
        self._gone_req_ids, self._preempted_req_ids = set(), set()
        return plan.build(self.kv_cache_manager, gone, preempted)

    def preempt(self, request: Request) -> None:
        """From running back to waiting. It keeps its tokens and nothing else."""
        self.kv_cache_manager.free(request)
        self.running.remove_request(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.prompt_logprobs.clear()
        self.waiting.add_request(request)
        self._gone_req_ids.add(request.request_id)
        self._preempted_req_ids.add(request.request_id)
        self.num_preemptions += 1

    def remove(self, request: Request) -> None:
        """Take a request that ends from its queue, and drop its blocks."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove_request(request)
            self._gone_req_ids.add(request.request_id)
        else:
            self.waiting.remove_request(request)
            self._preempted_req_ids.discard(request.request_id)
        self.kv_cache_manager.free(request)

    def drop_again(self, unexecuted: SchedulerOutput) -> None:
        """The worker may not have come to drop the rows that a failed step named."""
        self._gone_req_ids |= unexecuted.finished_req_ids

    def _grow_or_preempt(self, request: Request, plan: StepPlan) -> None:
        """Give a running request its tokens; on shortage the last in order gives up its blocks,
        which may be this one."""
        num_new_tokens = plan.num_tokens_for(request, request.num_computed_tokens)
        if not num_new_tokens:
            return
        while (blocks := self.kv_cache_manager.allocate_slots(request, num_new_tokens)) is None:
            victim = self.running.last_but(plan.alone)
            if victim is None:
                return
            self._preempt_for(plan, victim)
            if victim is request:
                return
        plan.grant(request, num_new_tokens, blocks)

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        """Let a waiting request run, if need be in place of a running one that it outranks."""
        computed, num_hit_tokens = self.kv_cache_manager.get_computed_blocks(request)
        while num_new_tokens := plan.num_tokens_for(request, num_hit_tokens):
            if len(self.running) < self.limits.max_num_seqs and (
                self.kv_cache_manager.allocate_slots(
                    request,
                    num_new_tokens,
                    computed,
                    num_computed_tokens=num_hit_tokens,
                    full_sequence_must_fit=len(self.running) > 0,
                )
                is not None
            ):
                self._start(request, num_hit_tokens)
                plan.grant_admitted(request, num_new_tokens)
                return True
            victim = self.running.last_but(None)
            if victim is None:
                return False
            if plan.alone is None and not self.waiting.may_displace(request, victim):
                return False
            self._preempt_for(plan, victim)
        return False

    def _preempt_for(self, plan: StepPlan, victim: Request) -> None:
        plan.revoke(victim)
        self.preempt(victim)

    def _start(self, request: Request, num_hit_tokens: int) -> None:
        """From waiting to running; its blocks are there."""
        self.waiting.remove_request(request)
        self.running.add_request(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_hit_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_hit_tokens
            request.scheduled_ts = time.monotonic()
            self.kv_cache_manager.record_lookup(request.num_tokens, num_hit_tokens)
