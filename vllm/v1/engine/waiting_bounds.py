# SPDX-License-Identifier: Apache-2.0
"""The bound on the waiting queue, judged in front, where a refusal costs nothing."""

from vllm.config import SchedulerConfig
from vllm.exceptions import EngineOverloadedError
from vllm.v1.engine.output_processor import OutputProcessor


def check_waiting_bounds(
    limits: SchedulerConfig, output_processor: OutputProcessor, *, n: int, num_prompt_tokens: int
) -> None:
    """Refuse a request for which there is no room.

    Outputs beyond those that can run at once (`max_num_seqs`) wait; a request for n takes n
    places. A request of more tokens than the bound is taken when nothing waits, else it could
    never be.

    Raises:
        EngineOverloadedError: the queue is full.
    """
    if limits.max_waiting_requests is None and limits.max_waiting_tokens is None:
        return
    num_waiting, num_waiting_tokens = output_processor.waiting_load(limits.max_num_seqs)
    num_free = max(0, limits.max_num_seqs - output_processor.num_unfinished_requests)
    num_new = max(0, n - num_free)
    bound = limits.max_waiting_requests
    if bound is not None and num_waiting + num_new > bound:
        _refuse(f"{num_waiting} requests wait (max_waiting_requests={bound})")
    bound = limits.max_waiting_tokens
    if bound is None or not num_waiting or not num_new:
        return
    if num_waiting_tokens + num_new * num_prompt_tokens > bound:
        _refuse(f"{num_waiting_tokens} prompt tokens wait (max_waiting_tokens={bound})")


def _refuse(what: str) -> None:
    raise EngineOverloadedError(f"the engine is overloaded: {what}; try again later")
