# SPDX-License-Identifier: Apache-2.0
"""Rows that last as long as a request, and the flat batch gathered from them for one step.

A request keeps one row for life; nothing moves when its neighbours come and go. The arrays are
as large as the limits allow, but memory is taken only where something was written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.sample.states import SamplingStates
from vllm.v1.worker.block_table import MultiGroupBlockTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One step's flat batch, request by request.

    Attributes:
        req_ids: requests in batch order.
        rows: [num_reqs], int64, their rows.
        query_start_loc: [num_reqs + 1], int32, first token of each request.
        seq_lens: [num_reqs], int32, tokens computed once this step is done.
        token_rows: [num_tokens], int64, row of each token.
        positions: [num_tokens], int64.
        token_ids: [num_tokens], int64.
        sampling: [num_sampling], int64, indices into `req_ids` of requests whose last known
            token is in this step.
    """

    req_ids: list[str]
    rows: np.ndarray
    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    token_rows: np.ndarray
    positions: np.ndarray
    token_ids: np.ndarray
    sampling: np.ndarray

    @property
    def num_tokens(self) -> int:
        """Tokens in the step."""
        return len(self.token_ids)


class InputBatch:
    """The rows.

    Attributes:
        token_ids: [max_num_reqs, max_model_len + 1], int32, prompt and output.
        num_tokens: [max_num_reqs], int32, tokens known.
        num_computed_tokens: [max_num_reqs], int32, tokens whose keys and values are cached.
        num_prompt_tokens: [max_num_reqs], int32.
        row_of: row of each request.
        prompt_logprobs: how many top logprobs each request wants of its prompt, where it wants
            any and has not had them yet.
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_model_len: int,
        block_tables: MultiGroupBlockTable,
        sampling_states: SamplingStates,
    ) -> None:
        self.token_ids = np.empty((max_num_reqs, max_model_len + 1), dtype=np.int32)
        self.num_tokens = np.zeros(max_num_reqs, dtype=np.int32)
        self.num_computed_tokens = np.zeros(max_num_reqs, dtype=np.int32)
        self.num_prompt_tokens = np.zeros(max_num_reqs, dtype=np.int32)
        self.row_of: dict[str, int] = {}
        self.prompt_logprobs: dict[str, int] = {}
        self.block_tables = block_tables
        self.sampling_states = sampling_states
        self._free_rows = list(range(max_num_reqs - 1, -1, -1))

    def update(self, scheduler_output: SchedulerOutput) -> None:
        """Apply what changed since the last step: rows go, come, and get blocks."""
        for req_id in scheduler_output.finished_req_ids:
            self.remove_request(req_id)
        for req_id in scheduler_output.preempted_req_ids:
            self.remove_request(req_id)
        for new in scheduler_output.scheduled_new_reqs:
            self.add_request(new)
        for cached in scheduler_output.scheduled_cached_reqs:
            self._update_request(cached)

    def add_request(self, new: NewRequestData) -> None:
        """Give a request a row."""
        self.remove_request(new.req_id)  # a step that failed may have left one
        row = self.row_of[new.req_id] = self._free_rows.pop()
        num_prompt, num_output = len(new.prompt_token_ids), len(new.output_token_ids)
        self.token_ids[row, :num_prompt] = new.prompt_token_ids
        self.token_ids[row, num_prompt : num_prompt + num_output] = new.output_token_ids
        self.num_tokens[row] = num_prompt + num_output
        self.num_prompt_tokens[row] = num_prompt
        self.num_computed_tokens[row] = new.num_computed_tokens
        self.block_tables.set_row(row, new.block_ids)
        num_logprobs = new.sampling_params.prompt_logprobs
        if num_logprobs is not None and not num_output:
            self.prompt_logprobs[new.req_id] = num_logprobs
        self.sampling_states.add_request(
            row, new.sampling_params, new.prompt_token_ids, new.output_token_ids
        )

    def remove_request(self, req_id: str) -> None:
        """Take a request's row back; a request without one is fine."""
        row = self.row_of.pop(req_id, None)
        if row is not None:
            self.prompt_logprobs.pop(req_id, None)
            self._free_rows.append(row)
            self.sampling_states.remove_request(row)

    def append_token(self, req_id: str, token_id: int) -> None:
        """Record a token that was drawn."""
        row = self.row_of[req_id]
        self.token_ids[row, self.num_tokens[row]] = token_id
        self.num_tokens[row] += 1
        self.sampling_states.append_token(row, token_id)

    def gather(self, num_scheduled_tokens: Mapping[str, int]) -> StepInputs:
        """The flat batch of a step.

        Args:
            num_scheduled_tokens: tokens of each request, in batch order, each at least 1.
        """
        req_ids = list(num_scheduled_tokens)
        rows = np.array([self.row_of[req_id] for req_id in req_ids], dtype=np.int64)
        query_lens = np.fromiter(num_scheduled_tokens.values(), np.int64, len(req_ids))
        query_start_loc = np.zeros(len(req_ids) + 1, dtype=np.int32)
        np.cumsum(query_lens, out=query_start_loc[1:])
        computed = self.num_computed_tokens[rows]
        seq_lens = (computed + query_lens).astype(np.int32)
        token_rows = np.repeat(rows, query_lens)
        shift = np.repeat(computed - query_start_loc[:-1], query_lens)
        positions = np.arange(len(token_rows), dtype=np.int64) + shift
        return StepInputs(
            req_ids=req_ids,
            rows=rows,
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            token_rows=token_rows,
            positions=positions,
            token_ids=self.token_ids[token_rows, positions].astype(np.int64),
            sampling=np.nonzero(seq_lens == self.num_tokens[rows])[0],
        )

    def _update_request(self, cached: CachedRequestData) -> None:
        row = self.row_of[cached.req_id]
        self.num_computed_tokens[row] = cached.num_computed_tokens
        if cached.new_block_ids is not None:
            self.block_tables.append_row(row, cached.new_block_ids)
