# SPDX-License-Identifier: Apache-2.0
"""The bound on the waiting queue, judged in front, where a refusal costs nothing."""

from collections.abc import Sequence

from vllm.config import SchedulerConfig
from vllm.exceptions import EngineOverloadedError, VLLMValidationError
from vllm.v1.engine.output_processor import OutputProcessor


def check_waiting_bounds(
    limits: SchedulerConfig,
    output_processor: OutputProcessor,
    requests: Sequence[tuple[int, int]],
) -> None:
    """Refuse requests for which there is no room; all of them or none.

    Outputs beyond those that can run at once (`max_num_seqs`) wait; a request for n takes n
    places. A request of more tokens than the bound is taken when nothing waits, else it could
    never be.

    Args:
        requests: outputs and prompt tokens of each, in the order in which they are to be added.

    Raises:
        VLLMValidationError: not even an idle engine has room for them.
        EngineOverloadedError: the queue is full now.
    """
    if limits.max_waiting_requests is None and limits.max_waiting_tokens is None:
        return
    never = _lacking_room(limits, 0, 0, requests)
    if never is not None:
        num_outputs = sum(n for n, _ in requests)
        raise VLLMValidationError(
            f"{num_outputs} outputs at once are more than this engine ever takes; ask for fewer: "
            f"{limits.max_num_seqs} run at a time (max_num_seqs), and of the rest {never}",
            parameter="n" if len(requests) == 1 else "prompt",
            value=num_outputs,
        )
    num_waiting_tokens = output_processor.waiting_load(limits.max_num_seqs)[1]
    now = _lacking_room(
        limits, output_processor.num_unfinished_requests, num_waiting_tokens, requests
    )
    if now is not None:
        raise EngineOverloadedError(f"the engine is overloaded: {now}; try again later")


def _lacking_room(
    limits: SchedulerConfig,
    num_unfinished: int,
    num_waiting_tokens: int,
    requests: Sequence[tuple[int, int]],
) -> str | None:
    """Which bound `requests` go over when they are added one after the other, if any."""
    max_requests, max_tokens = limits.max_waiting_requests, limits.max_waiting_tokens
    for n, num_prompt_tokens in requests:
        num_waiting = max(0, num_unfinished - limits.max_num_seqs)
        num_unfinished += n
        num_new = max(0, num_unfinished - limits.max_num_seqs) - num_waiting
        if max_requests is not None and num_waiting + num_new > max_requests:
            return f"{num_waiting} requests wait (max_waiting_requests={max_requests})"
        num_tokens = num_waiting_tokens + num_new * num_prompt_tokens
        if max_tokens is not None and num_waiting and num_new and num_tokens > max_tokens:
            return f"{num_waiting_tokens} prompt tokens wait (max_waiting_tokens={max_tokens})"
        num_waiting_tokens = num_tokens
    return None
