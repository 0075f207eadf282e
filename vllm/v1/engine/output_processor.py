# SPDX-License-Identifier: Apache-2.0
"""From the core's tokens to what callers get: the one loop over outputs in the front end.

Owns the state of every unfinished request on this side; knows nothing of steps or blocks.
"""

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm.exceptions import RequestFailedError, VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.v1.engine.collector import RequestOutputCollector
from vllm.v1.engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.parallel_sampling import child_id, child_params
from vllm.v1.engine.request_state import PromptRecord, RequestState
from vllm.v1.engine.token_text import TokenText
from vllm.v1.metrics.stats import IterationStats


@dataclass(slots=True)
class ProcessedOutputs:
    """What a batch of core outputs brought.

    Attributes:
        request_outputs: for callers without a queue.
        reqs_to_abort: ids the core still runs although the output has ended (stop strings).
    """

    request_outputs: list[RequestOutput] = field(default_factory=list)
    reqs_to_abort: list[str] = field(default_factory=list)


class OutputProcessor:
    """Detokenizes, matches stop strings, gathers logprobs, merges the n outputs of a prompt.

    Args:
        token_text: the tokenizer's side; None gives no text.
        log_stats: attach times to outputs.
    """

    def __init__(self, token_text: TokenText | None, *, log_stats: bool) -> None:
        self._token_text = token_text
        self._log_stats = log_stats
        # Both in order of arrival. A prompt's record stays until all its outputs have ended.
        self.request_states: dict[str, RequestState] = {}
        self._records: dict[str, PromptRecord] = {}

    @property
    def num_unfinished_requests(self) -> int:
        """Outputs that have not ended; a prompt for n counts n times."""
        return len(self.request_states)

    def has_unfinished_requests(self) -> bool:
        """Whether any output has not ended."""
        return bool(self.request_states)

    def waiting_load(self, num_slots: int) -> tuple[int, int]:
        """Outputs, and their prompts' tokens, beyond the `num_slots` that can run at once."""
        waiting = list(itertools.islice(self.request_states.values(), num_slots, None))
        return len(waiting), sum(len(s.record.prompt_token_ids) for s in waiting)

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        queue: RequestOutputCollector | None = None,
    ) -> list[EngineCoreRequest]:
        """Take a request; what is to be sent to the core, one for each of its n outputs.

        Raises:
            VLLMValidationError: the id is in use.
        """
        request_id, n = request.request_id, request.sampling_params.n
        ids = [child_id(request_id, i, n) for i in range(n)]
        if request_id in self._records or any(i in self.request_states for i in ids):
            raise VLLMValidationError(
                f"request_id={request_id!r} is in use; pass another", parameter="request_id"
            )
        record = PromptRecord(request_id, prompt, request, queue)
        record.child_ids = ids
        self._records[request_id] = record
        children = []
        for index, core_id in enumerate(ids):
            self.request_states[core_id] = RequestState(record, index, self._token_text)
            children.append(
                EngineCoreRequest(
                    request_id=core_id,
                    prompt_token_ids=request.prompt_token_ids,
                    sampling_params=child_params(request.sampling_params, index),
                    arrival_time=request.arrival_time,
                    cache_salt=request.cache_salt,
                    priority=request.priority,
                )
            )
        return children

    def process_outputs(
        self, outputs: EngineCoreOutputs, iteration_stats: IterationStats | None = None
    ) -> ProcessedOutputs:
        """Take a step's outputs; those of requests that have ended meanwhile are skipped."""
        processed = ProcessedOutputs()
        now = time.monotonic()
        for output in outputs.outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue
            if iteration_stats is not None:
                state.count_iteration(iteration_stats, len(output.new_token_ids), now)
            reason, stop_reason = state.update(output, now)
            if reason is not None:
                if output.finish_reason is None:
                    processed.reqs_to_abort.append(output.request_id)
                self._finish(output.request_id, reason, iteration_stats, now)
            if output.error is not None and state.record.queue is not None:
                self._fail(state, output, processed, iteration_stats, now)
                continue
            self._tell(state, reason, stop_reason, processed, output.error)
        return processed

    def abort_requests(
        self, request_ids: Iterable[str], iteration_stats: IterationStats | None = None
    ) -> tuple[list[str], list[RequestOutput]]:
        """End requests by the caller's ids; unknown ones are skipped.

        Returns:
            Ids to abort in the core, and the last outputs of callers without a queue.
        """
        core_ids, processed = [], ProcessedOutputs()
        for request_id in request_ids:
            record = self._records.get(request_id)
            for core_id in record.child_ids if record else ():
                state = self.request_states.get(core_id)
                if state is None:
                    continue
                core_ids.append(core_id)
                state.detokenizer.finish()
                self._finish(core_id, "abort", iteration_stats, time.monotonic())
                self._tell(state, "abort", None, processed, None)
        return core_ids, processed.request_outputs

    def fail_all(self, error: Exception) -> None:
        """End every request with `error`: the engine is gone."""
        records, self._records = self._records, {}
        self.request_states.clear()
        for record in records.values():
            if record.queue is not None:
                record.queue.put(error)

    def _tell(
        self,
        state: RequestState,
        reason: str | None,
        stop_reason: int | str | None,
        processed: ProcessedOutputs,
        error: str | None,
    ) -> None:
        completion = state.make_completion(reason, stop_reason)
        if completion is None:
            return
        message = state.make_request_output(completion, with_stats=self._log_stats, error=error)
        if message is None:
            return
        if state.record.queue is not None:
            state.record.queue.put(message)
        else:
            processed.request_outputs.append(message)

    def _fail(
        self,
        state: RequestState,
        output: EngineCoreOutput,
        processed: ProcessedOutputs,
        iteration_stats: IterationStats | None,
        now: float,
    ) -> None:
        """One output failed: the caller gets the error, the prompt's other outputs go too."""
        record = state.record
        assert record.queue is not None and output.error is not None
        record.queue.put(RequestFailedError(output.error))
        for core_id in record.child_ids:
            if core_id in self.request_states:
                processed.reqs_to_abort.append(core_id)
                self._finish(core_id, "abort", iteration_stats, now)

    def _finish(
        self, core_id: str, reason: str, iteration_stats: IterationStats | None, now: float
    ) -> None:
        state = self.request_states.pop(core_id)
        if iteration_stats is not None:
            iteration_stats.finished_requests.append(state.finished_stats(reason, now))
        if not any(i in self.request_states for i in state.record.child_ids):
            self._records.pop(state.record.request_id, None)
