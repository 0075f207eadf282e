# SPDX-License-Identifier: Apache-2.0
"""What a caller gets back: a `RequestOutput` per prompt, a `CompletionOutput` per choice."""

from dataclasses import dataclass, field

from vllm.logprobs import PromptLogprobs, SampleLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One of a prompt's `n` outputs.

    Attributes:
        index: position among the prompt's outputs, 0 to n - 1.
        text: the text (all or new since the last output, by `output_kind`).
        token_ids: the token ids, likewise.
        cumulative_logprob: sum of the sampled tokens' logprobs; None unless asked for.
        logprobs: per token of `token_ids`; None unless asked for.
        finish_reason: "stop", "length", "abort" or "error"; None while running.
        stop_reason: the stop string or stop token id that matched; None for EOS.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether this output is complete."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestStateStats:
    """Times of one request, in seconds of the monotonic clock unless said otherwise.

    Attributes:
        arrival_time: seconds since the epoch.
        queued_ts: entered the waiting queue.
        scheduled_ts: first scheduled.
        first_token_ts: first token out of the model.
        last_token_ts: latest token out of the model.
        first_token_latency: from arrival to the first token, in seconds.
        num_generation_tokens: tokens generated so far.
    """

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    num_generation_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """Everything known about one prompt's request.

    Attributes:
        request_id: id given by the caller or the engine.
        prompt: the prompt's text; None for a prompt of token ids.
        prompt_token_ids: the ids the engine ran.
        prompt_logprobs: per prompt token; None unless asked for.
        outputs: one per choice; with DELTA only those that changed.
        finished: whether every choice is complete.
        num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
        num_preemptions: times the request lost its blocks and was computed anew.
        metrics: times; None when statistics are off.
        error: why the engine ended the request; None unless a finish_reason is "error".
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    metrics: RequestStateStats | None = field(default=None, repr=False)
    lora_request: None = None
    error: str | None = None
