# SPDX-License-Identifier: Apache-2.0
"""Hands one request's outputs from the engine's task to the task that consumes them."""

import asyncio

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind


class RequestOutputCollector:
    """A mailbox of one place: a consumer that lags finds deltas joined, or the latest state.

    So a slow client costs the engine nothing, and no text is lost.

    Args:
        output_kind: whether outputs are deltas.
        request_id: the caller's id.
    """

    def __init__(self, output_kind: RequestOutputKind, request_id: str) -> None:
        self.request_id = request_id
        self._is_delta = output_kind is RequestOutputKind.DELTA
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput | Exception) -> None:
        """Add an output, or the error that ends the request; never blocks."""
        if isinstance(output, Exception):
            self._error = self._error or output
        elif self._output is None or not self._is_delta:
            self._output = output
        else:
            merge_delta(self._output, output)
        self._ready.set()

    async def get(self) -> RequestOutput:
        """The next output.

        Raises:
            Exception: the request's error, after the outputs before it.
        """
        while (output := self.get_nowait()) is None:
            await self._ready.wait()
        return output

    def get_nowait(self) -> RequestOutput | None:
        """The next output if there is one."""
        output, self._output = self._output, None
        if output is None and self._error is not None:
            raise self._error
        if self._error is None:
            self._ready.clear()
        return output


def merge_delta(into: RequestOutput, new: RequestOutput) -> None:
    """Append delta `new` to delta `into`, output by output."""
    into.finished = new.finished
    into.num_cached_tokens = new.num_cached_tokens
    into.num_preemptions = new.num_preemptions
    into.metrics = new.metrics
    into.error = into.error or new.error
    into.prompt_logprobs = into.prompt_logprobs or new.prompt_logprobs
    by_index = {output.index: output for output in into.outputs}
    for output in new.outputs:
        if (earlier := by_index.get(output.index)) is None:
            into.outputs.append(output)
        else:
            _append(earlier, output)


def _append(into: CompletionOutput, new: CompletionOutput) -> None:
    into.text += new.text
    into.token_ids += new.token_ids
    if new.logprobs:
        into.logprobs = (into.logprobs or []) + new.logprobs
    into.cumulative_logprob = new.cumulative_logprob
    into.finish_reason = new.finish_reason
    into.stop_reason = new.stop_reason
