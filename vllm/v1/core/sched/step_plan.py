# SPDX-License-Identifier: Apache-2.0
"""One step while it is being put together: the budget left, and who got how many tokens.

Becomes the `SchedulerOutput`. Decides nothing about order or blocks.
"""

from collections.abc import Iterable

from vllm.config.scheduler import SchedulerConfig
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.request import Request


class StepPlan:
    """Tokens granted in this step.

    Args:
        limits: the step's limits.
        alone: the one request that may be in this step, or None for any.
    """

    def __init__(self, limits: SchedulerConfig, alone: Request | None = None) -> None:
        self.alone = alone
        self.has_preempted = False
        self._limits = limits
        self._budget = limits.max_num_batched_tokens
        self._granted: dict[str, tuple[Request, int]] = {}
        self._new_block_ids: dict[str, tuple[list[int], ...] | None] = {}
        self._admitted: set[str] = set()

    def __len__(self) -> int:
        return len(self._granted)

    def num_tokens_for(self, request: Request, num_computed_tokens: int) -> int:
        """Tokens the request can have now: what it lacks, within the budget; maybe 0.

        Without chunked prefill all or nothing.
        """
        missing = request.num_tokens - num_computed_tokens
        if not self._limits.enable_chunked_prefill:
            return missing if missing <= self._budget else 0
        threshold = self._limits.long_prefill_token_threshold
        return min(missing, self._budget, threshold or missing)

    def grant(self, request: Request, num_tokens: int, new_blocks: KVCacheBlocks) -> None:
        """Put tokens of a request that the worker knows into the step."""
        self._budget -= num_tokens
        self._granted[request.request_id] = (request, num_tokens)
        self._new_block_ids[request.request_id] = new_blocks.get_new_block_ids()

    def grant_admitted(self, request: Request, num_tokens: int) -> None:
        """Put tokens of a request that is new to the worker into the step."""
        self._budget -= num_tokens
        self._granted[request.request_id] = (request, num_tokens)
        self._admitted.add(request.request_id)

    def revoke(self, request: Request) -> None:
        """Note a preemption; what the request was granted goes back to the budget."""
        self.has_preempted = True
        _, num_tokens = self._granted.pop(request.request_id, (request, 0))
        self._budget += num_tokens

    def build(
        self, kv_cache_manager: KVCacheManager, gone: Iterable[str], preempted: Iterable[str]
    ) -> SchedulerOutput:
        """The step for the worker; the requests count its tokens as computed from here on.

        Args:
            gone: requests whose rows the worker shall drop first.
            preempted: those of `gone` that will come back.
        """
        output = SchedulerOutput(finished_req_ids=set(gone), preempted_req_ids=set(preempted))
        for req_id, (request, num_tokens) in self._granted.items():
            if req_id in self._admitted:
                block_ids = kv_cache_manager.get_block_ids(req_id)
                output.scheduled_new_reqs.append(_new_request_data(request, block_ids))
            else:
                output.scheduled_cached_reqs.append(
                    CachedRequestData(
                        req_id, self._new_block_ids[req_id], request.num_computed_tokens
                    )
                )
            output.num_scheduled_tokens[req_id] = num_tokens
            request.num_computed_tokens += num_tokens
            samples = request.num_computed_tokens == request.num_tokens
            if samples and request.use_structured_output:
                output.grammar_req_ids.append(req_id)
        return output


def _new_request_data(request: Request, block_ids: tuple[list[int], ...]) -> NewRequestData:
    return NewRequestData(
        req_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=list(request.output_token_ids),
        sampling_params=request.sampling_params,
        block_ids=block_ids,
        num_computed_tokens=request.num_computed_tokens,
    )
