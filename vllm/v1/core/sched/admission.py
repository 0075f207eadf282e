# SPDX-License-Identifier: Apache-2.0
"""What is refused at the door: requests that can never run, and more than the queue may hold."""

from collections.abc import Collection

from vllm.config.scheduler import SchedulerConfig
from vllm.exceptions import EngineOverloadedError, VLLMValidationError
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.engine.messages import EngineCoreRequest
from vllm.v1.request import Request


def check_can_ever_run(
    request: EngineCoreRequest, max_model_len: int, kv_cache_manager: KVCacheManager
) -> None:
    """Refuse a request that would wait, or be preempted, for ever.

    Raises:
        VLLMValidationError: the prompt is empty or leaves no room for a token, or prompt and
            output together need more blocks than there are.
    """
    num_prompt_tokens = len(request.prompt_token_ids)
    if not 0 < num_prompt_tokens < max_model_len:
        raise VLLMValidationError(
            f"the prompt has {num_prompt_tokens} tokens; pass at least 1 and at most "
            f"{max_model_len - 1}, so that one more fits into max_model_len={max_model_len}",
            parameter="prompt_token_ids",
            value=num_prompt_tokens,
        )
    max_tokens = request.sampling_params.max_tokens
    num_tokens = max_model_len
    if max_tokens is not None:
        num_tokens = min(num_tokens, num_prompt_tokens + max_tokens)
    # The last token is returned, never fed: it needs no slot.
    if not kv_cache_manager.can_ever_fit(num_tokens - 1):
        raise VLLMValidationError(
            f"{num_prompt_tokens} prompt tokens with max_tokens={max_tokens} do not fit into the "
            "KV cache even alone; shorten either or give the cache more memory",
            parameter="max_tokens",
            value=max_tokens,
        )


class QueueBounds:
    """Bounds of the waiting queue, and how often they were met.

    Args:
        limits: `max_waiting_requests` and `max_waiting_tokens`, None for no bound.
    """

    def __init__(self, limits: SchedulerConfig) -> None:
        self._max_requests = limits.max_waiting_requests
        self._max_tokens = limits.max_waiting_tokens
        self.num_refused = 0

    def check(self, request: EngineCoreRequest, waiting: Collection[Request]) -> None:
        """Refuse a request for which there is no room behind `waiting`.

        A request of more tokens than the bound is taken when nothing waits, else it could
        never be.

        Raises:
            EngineOverloadedError: the queue is full.
        """
        if self._max_requests is not None and len(waiting) >= self._max_requests:
            self._refuse(
                f"{len(waiting)} requests wait (max_waiting_requests={self._max_requests})"
            )
        if self._max_tokens is not None and waiting:
            num_tokens = sum(queued.num_tokens for queued in waiting)
            if num_tokens + len(request.prompt_token_ids) > self._max_tokens:
                self._refuse(f"{num_tokens} tokens wait (max_waiting_tokens={self._max_tokens})")

    def _refuse(self, what: str) -> None:
        self.num_refused += 1
        raise EngineOverloadedError(f"the engine is overloaded: {what}; try again later")
