# SPDX-License-Identifier: Apache-2.0
"""What a step brought for one request: its tokens up to the stop, and the message that says so.

Pure functions of a request and the worker's results; decides nothing about blocks or queues.
"""

from collections.abc import Sequence

from vllm.v1.engine.messages import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus


def result_error(request: Request, results: ModelRunnerOutput) -> str | None:
    """Why this request's own step failed, None if it did not.

    Tokens must come exactly when the request has caught up: a request without one would wait
    for ever, one with too many would have skipped its prompt.
    """
    req_id = request.request_id
    if req_id in results.errors:
        return results.errors[req_id]
    has_caught_up = request.num_computed_tokens == request.num_tokens
    if has_caught_up != bool(results.sampled_token_ids.get(req_id)):
        return f"the model returned {'no' if has_caught_up else 'a premature'} token"
    return None


def append_until_stop(
    request: Request, token_ids: Sequence[int], max_model_len: int
) -> tuple[list[int], RequestStatus | None]:
    """Append drawn tokens up to and including the one that ends the request.

    Returns:
        The tokens appended, and the finished status if one of them ends it.
    """
    for i, token_id in enumerate(token_ids):
        request.append_output_token(token_id)
        status = check_stop(request, max_model_len)
        if status is not None:
            return list(token_ids[: i + 1]), status
    return list(token_ids), None


def check_stop(request: Request, max_model_len: int) -> RequestStatus | None:
    """The finished status if the last token ends the request; sets the stop reason."""
    params = request.sampling_params
    token_id = request.output_token_ids[-1]
    if request.num_output_tokens >= params.min_tokens and token_id in request.stop_token_ids:
        is_eos = not params.ignore_eos and token_id in params.eos_token_ids
        request.stop_reason = None if is_eos else token_id
        return RequestStatus.FINISHED_STOPPED
    if request.num_output_tokens >= request.max_tokens or request.num_tokens >= max_model_len:
        return RequestStatus.FINISHED_LENGTH_CAPPED
    return None


def gather_prompt_logprobs(request: Request, results: ModelRunnerOutput) -> None:
    """Keep the rows of this chunk. After the first token they are out already: a prompt that is
    computed again after a preemption brings nothing new."""
    rows = results.prompt_logprobs.get(request.request_id)
    if rows is not None and request.num_output_tokens == 0:
        request.prompt_logprobs.append(rows)


def take_prompt_logprobs(request: Request) -> LogprobsLists | None:
    """All rows gathered, for the first token; None if not asked for or out already."""
    if request.sampling_params.prompt_logprobs is None or request.num_output_tokens > 0:
        return None
    rows = concat_logprobs(request.prompt_logprobs)
    request.prompt_logprobs.clear()
    return rows


def concat_logprobs(parts: Sequence[LogprobsLists]) -> LogprobsLists:
    """The positions of all parts, in order."""
    return LogprobsLists(
        token_ids=[row for part in parts for row in part.token_ids],
        logprobs=[row for part in parts for row in part.logprobs],
        sampled_ranks=[rank for part in parts for rank in part.sampled_ranks],
    )


def first_logprobs(rows: LogprobsLists | None, n: int) -> LogprobsLists | None:
    """The first `n` positions: none past the stop."""
    if rows is None or len(rows.token_ids) == n:
        return rows
    return LogprobsLists(rows.token_ids[:n], rows.logprobs[:n], rows.sampled_ranks[:n])


def make_output(
    request: Request,
    new_token_ids: list[int] | None = None,
    *,
    new_logprobs: LogprobsLists | None = None,
    new_prompt_logprobs: LogprobsLists | None = None,
) -> EngineCoreOutput:
    """The message about `request` as it is now."""
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=new_token_ids or [],
        new_logprobs=new_logprobs,
        new_prompt_logprobs=new_prompt_logprobs,
        finish_reason=request.status.finish_reason,
        stop_reason=request.stop_reason,
        num_cached_tokens=request.num_cached_tokens or 0,
        num_preemptions=request.num_preemptions,
        queued_ts=request.queued_ts,
        scheduled_ts=request.scheduled_ts,
        error=request.error,
    )
