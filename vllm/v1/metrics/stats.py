# SPDX-License-Identifier: Apache-2.0
"""Numbers of one engine iteration as the front end counts them; loggers consume these."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class FinishedRequestStats:
    """One request that ended; all times in seconds.

    Attributes:
        finish_reason: "stop", "length", "abort" or "error".
        e2e_latency: from arrival to the last token.
        queued_time: from arrival at the core to the first step.
        prefill_time: from the first step to the first token.
        decode_time: from the first token to the last.
    """

    finish_reason: str
    e2e_latency: float = 0.0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_cached_tokens: int = 0
    max_tokens_param: int | None = None
    n_param: int = 1
    queued_time: float = 0.0
    prefill_time: float = 0.0
    decode_time: float = 0.0


@dataclass(slots=True)
class IterationStats:
    """What one batch of core outputs brought.

    Attributes:
        num_prompt_tokens: prompt tokens of requests that got their first token now.
        time_to_first_tokens: per such request, seconds since arrival.
        inter_token_latencies: per later token, seconds since the one before.
    """

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    time_to_first_tokens: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)
