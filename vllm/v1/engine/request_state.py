# SPDX-License-Identifier: Apache-2.0
"""What the front end keeps of one output while it runs, and the messages made from it."""

import time

from vllm.logprobs import PromptLogprobs
from vllm.outputs import CompletionOutput, RequestOutput, RequestStateStats
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.collector import RequestOutputCollector
from vllm.v1.engine.detokenizer import Detokenizer
from vllm.v1.engine.logprobs import LogprobsProcessor, prompt_logprobs
from vllm.v1.engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.engine.token_text import TokenText
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats


class PromptRecord:
    """What the n outputs of one prompt share.

    Args:
        request_id: the caller's id.
        prompt: the prompt's text, if there was one.
        core_request: the request before it is split, with the complete parameters.
        queue: where outputs go; None when the caller steps the engine itself.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        core_request: EngineCoreRequest,
        queue: RequestOutputCollector | None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = core_request.prompt_token_ids
        self.params: SamplingParams = core_request.sampling_params
        self.arrival_time = core_request.arrival_time
        self.started = time.monotonic()
        self.queue = queue
        self.parent = ParentRequest(self.params.n, self.params.output_kind)
        self.prompt_logprobs: PromptLogprobs | None = None
        self.child_ids: list[str] = []


class RequestState:
    """One output of a prompt.

    Args:
        record: what it shares with the prompt's other outputs.
        index: 0 to n - 1.
        token_text: the tokenizer's side; None gives no text.
    """

    def __init__(self, record: PromptRecord, index: int, token_text: TokenText | None) -> None:
        self.record = record
        self.index = index
        self._token_text = token_text
        params, prompt_ids = record.params, record.prompt_token_ids
        self.detokenizer = Detokenizer(token_text, params, prompt_ids)
        self.logprobs = (
            None if params.logprobs is None else LogprobsProcessor(token_text, prompt_ids)
        )
        self.stats = RequestStateStats(arrival_time=record.arrival_time)
        self._num_sent_chars = 0
        self._num_sent_tokens = 0
        self._num_cached_tokens = 0
        self._num_preemptions = 0

    def update(self, output: EngineCoreOutput, now: float) -> tuple[str | None, int | str | None]:
        """Take one step's news.

        Returns:
            The finish reason, None while the output goes on, and the stop reason.
        """
        self._num_cached_tokens = output.num_cached_tokens
        self._num_preemptions = output.num_preemptions
        if output.new_prompt_logprobs is not None:
            ids = self.record.prompt_token_ids
            self.record.prompt_logprobs = prompt_logprobs(
                self._token_text, ids, output.new_prompt_logprobs
            )
        num_before = len(self.detokenizer.token_ids)
        # Not by the reason alone: a grammar that is complete also ends with "stop".
        ended_by_token = output.finish_reason is FinishReason.STOP and self._is_stop_token(output)
        stop = self.detokenizer.update(output.new_token_ids, ended_by_token=ended_by_token)
        reason = None if output.finish_reason is None else str(output.finish_reason)
        if stop is None and reason is not None:
            stop = self.detokenizer.finish()
        num_new = len(self.detokenizer.token_ids) - num_before
        if self.logprobs is not None and output.new_logprobs is not None:
            self.logprobs.update(output.new_logprobs, num_new)
        self._count(output, num_new, now)
        if stop is not None and reason in (None, "stop", "length"):
            return "stop", stop
        return reason, output.stop_reason

    def _is_stop_token(self, output: EngineCoreOutput) -> bool:
        ids = self.record.params.all_stop_token_ids
        return bool(output.new_token_ids) and output.new_token_ids[-1] in ids

    def make_completion(
        self, finish_reason: str | None, stop_reason: int | str | None
    ) -> CompletionOutput | None:
        """The message about this output; None when there is nothing to say yet."""
        kind = self.record.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY and finish_reason is None:
            return None
        text, token_ids = self.detokenizer.text, self.detokenizer.token_ids
        logprobs = None if self.logprobs is None else self.logprobs.logprobs
        if kind is RequestOutputKind.DELTA:
            start = self._num_sent_tokens
            if finish_reason is None and self._is_held_back():
                return None  # its tokens and logprobs go out with the text they belong to
            text, token_ids = text[self._num_sent_chars :], token_ids[start:]
            logprobs = logprobs[start:] if logprobs is not None else None
            self._num_sent_chars += len(text)
            self._num_sent_tokens += len(token_ids)
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=list(token_ids),
            cumulative_logprob=None if self.logprobs is None else self.logprobs.cumulative_logprob,
            logprobs=None if logprobs is None else list(logprobs),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )

    def _is_held_back(self) -> bool:
        """Whether there is text to come for all tokens not sent yet, and none of it settled."""
        detokenizer = self.detokenizer
        return detokenizer.gives_text and len(detokenizer.text) == self._num_sent_chars

    def make_request_output(
        self, completion: CompletionOutput, *, with_stats: bool, error: str | None
    ) -> RequestOutput | None:
        """The message about the prompt that `completion` gives rise to, if any."""
        record = self.record
        outputs = record.parent.merge(completion)
        if not outputs:
            return None
        prompt_rows = record.prompt_logprobs
        if record.params.output_kind is RequestOutputKind.DELTA:
            record.prompt_logprobs = None  # told once
        return RequestOutput(
            request_id=record.request_id,
            prompt=record.prompt,
            prompt_token_ids=record.prompt_token_ids,
            prompt_logprobs=prompt_rows,
            outputs=outputs,
            finished=record.parent.finished,
            num_cached_tokens=self._num_cached_tokens,
            num_preemptions=self._num_preemptions,
            metrics=self.stats if with_stats else None,
            error=error,
        )

    def _count(self, output: EngineCoreOutput, num_new: int, now: float) -> None:
        stats = self.stats
        stats.queued_ts = output.queued_ts or stats.queued_ts
        stats.scheduled_ts = output.scheduled_ts or stats.scheduled_ts
        if num_new:
            if not stats.first_token_ts:
                stats.first_token_ts = now
                stats.first_token_latency = now - self.record.started
            stats.last_token_ts = now
            stats.num_generation_tokens += num_new

    def count_iteration(self, iteration: IterationStats, num_new: int, now: float) -> None:
        """Add this output's share of a step; called before `update`."""
        if not num_new:
            return
        iteration.num_generation_tokens += num_new
        if not self.stats.first_token_ts:
            iteration.num_prompt_tokens += len(self.record.prompt_token_ids)
            iteration.time_to_first_tokens.append(now - self.record.started)
        else:
            gap = (now - self.stats.last_token_ts) / num_new
            iteration.inter_token_latencies.extend([gap] * num_new)

    def finished_stats(self, finish_reason: str, now: float) -> FinishedRequestStats:
        """The account of an output that has ended."""
        stats = self.stats
        first, scheduled = stats.first_token_ts, stats.scheduled_ts
        return FinishedRequestStats(
            finish_reason=finish_reason,
            e2e_latency=now - self.record.started,
            num_prompt_tokens=len(self.record.prompt_token_ids),
            num_generation_tokens=stats.num_generation_tokens,
            num_cached_tokens=self._num_cached_tokens,
            max_tokens_param=self.record.params.max_tokens,
            n_param=self.record.params.n,
            queued_time=max(0.0, scheduled - stats.queued_ts) if scheduled else 0.0,
            prefill_time=max(0.0, first - scheduled) if first and scheduled else 0.0,
            decode_time=max(0.0, stats.last_token_ts - first) if first else 0.0,
        )
