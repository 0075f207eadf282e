# SPDX-License-Identifier: Apache-2.0
"""What crosses between front end and engine core: typed msgspec records, never pickle.

Token ids in, token ids out; the core knows nothing of text.
"""

import enum
from typing import Any

import msgspec

from vllm.sampling_params import SamplingParams
from vllm.v1.outputs import LogprobsLists


class FinishReason(enum.IntEnum):
    """Why a request ended; `str()` gives the API's word."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class EngineCoreRequest(
    msgspec.Struct, array_like=True, omit_defaults=True, gc=False, kw_only=True
):
    """One sequence to generate (n choices are n of these, see `parallel_sampling`).

    Attributes:
        prompt_token_ids: non-empty, each below the vocabulary's size.
        sampling_params: complete and checked; `seed` is always set (the input processor draws
            one where the client gave none), so that the draw depends on nothing else.
        arrival_time: seconds since the epoch.
        cache_salt: mixed into the prefix hashes; equal prefixes share blocks only if equal.
        priority: lower runs first under the priority policy.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float
    cache_salt: str | None = None
    priority: int = 0


class EngineCoreOutput(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, kw_only=True):
    """What one step brought for one request.

    Attributes:
        new_token_ids: tokens drawn in this step; never any past the stop.
        new_logprobs: rows for `new_token_ids`, when asked for.
        new_prompt_logprobs: rows for prompt tokens 1 .. len - 1, once, with the first token.
        stop_reason: the stop token id that matched; None for EOS and length.
        num_cached_tokens: prompt tokens found in the prefix cache.
        error: for finish_reason ERROR, what failed, in words fit for a client.
    """

    request_id: str
    new_token_ids: list[int] = msgspec.field(default_factory=list)
    new_logprobs: LogprobsLists | None = None
    new_prompt_logprobs: LogprobsLists | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    error: str | None = None


class PrefixCacheStats(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, kw_only=True):
    """Prefix-cache look-ups since the last report, in tokens."""

    queries: int = 0
    hits: int = 0


class SchedulerStats(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, kw_only=True):
    """The scheduler's state after a step; counters are since the last report."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    prefix_cache_stats: PrefixCacheStats = msgspec.field(default_factory=PrefixCacheStats)


class UtilityOutput(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """Answer to a utility call: a result, or the error's class name and message."""

    call_id: int
    result: Any = None
    error_type: str | None = None
    error_message: str | None = None


class EngineCoreOutputs(
    msgspec.Struct, array_like=True, omit_defaults=True, gc=False, kw_only=True
):
    """Everything one step brought.

    Attributes:
        utility_output: answer to a utility call; such a message carries nothing else.
    """

    outputs: list[EngineCoreOutput] = msgspec.field(default_factory=list)
    scheduler_stats: SchedulerStats | None = None
    utility_output: UtilityOutput | None = None


class EngineCoreRequestType(enum.Enum):
    """First frame of a message to the core."""

    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x02"
    SHUTDOWN = b"\x03"
