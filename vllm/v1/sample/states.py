# SPDX-License-Identifier: Apache-2.0
"""Sampling state of the requests, one row each for life, and the record gathered per step.

Owns what the draw needs to remember of a request: its parameters, how long its output is, the
counts for penalties and the tail for bad words. Knows nothing of logits or of other layers' rows.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from vllm.sampling_params import SamplingParams
from vllm.v1.sample.metadata import (
    PenaltyInputs,
    SamplingMetadata,
    TokenSet,
    TokenValues,
)
from vllm.v1.sample.penalties import TokenCounts

_NO_IDS = np.empty(0, dtype=np.int64)


class BadWords:
    """Token sequences that may not appear in an output.

    Args:
        sequences: token ids of each; one of length 1 is always banned, a longer one bans its
            last token where the output ends with the others.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._always = {s[0] for s in sequences if len(s) == 1}
        self._by_last_before: dict[int, list[tuple[int, ...]]] = {}
        for sequence in sequences:
            if len(sequence) > 1:
                self._by_last_before.setdefault(sequence[-2], []).append(tuple(sequence))
        longest = max((len(s) for s in sequences), default=1)
        self._tail: deque[int] = deque(maxlen=longest - 1)

    def append(self, token_id: int) -> None:
        """Extend the output."""
        self._tail.append(token_id)

    def banned(self) -> set[int]:
        """Tokens that would complete a sequence."""
        if not self._tail:
            return self._always
        tail = tuple(self._tail)
        candidates = self._by_last_before.get(tail[-1], ())
        completing = {s[-1] for s in candidates if tail[-len(s) + 1 :] == s[:-1]}
        return self._always | completing


class RowState:
    """One request. Attributes are None where the request does not use the feature."""

    __slots__ = (
        "allowed_ids",
        "bad_words",
        "bias",
        "counts",
        "num_output_tokens",
        "params",
        "stop_ids",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        *,
        vocab_size: int,
    ) -> None:
        self.params = params
        self.num_output_tokens = len(output_token_ids)
        self.allowed_ids: np.ndarray | None = None
        if params.allowed_token_ids is not None:
            self.allowed_ids = np.unique(np.array(params.allowed_token_ids, dtype=np.int64))
        self.stop_ids = _NO_IDS
        if params.min_tokens > 0:
            # Past the logits' end an id would reach into the next row; it cannot be drawn anyway.
            stop_ids = sorted(i for i in params.all_stop_token_ids if i < vocab_size)
            self.stop_ids = np.array(stop_ids, dtype=np.int64)
        self.bad_words: BadWords | None = None
        words = [word for word in params.bad_words_token_ids if word and max(word) < vocab_size]
        if words:
            self.bad_words = BadWords(words)
        self.bias: tuple[np.ndarray, np.ndarray] | None = None
        if params.logit_bias:
            ids = np.array(list(params.logit_bias), dtype=np.int64)
            values = np.array(list(params.logit_bias.values()), dtype=np.float32)
            self.bias = (ids, values)
        self.counts: TokenCounts | None = None
        repeats = params.repetition_penalty != 1.0
        if repeats or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
            self.counts = TokenCounts(prompt_token_ids if repeats else (), output_token_ids)
        for token_id in output_token_ids if self.bad_words is not None else ():
            self.bad_words.append(token_id)  # type: ignore[union-attr]

    def append(self, token_id: int) -> None:
        """Extend the output by a token that was drawn."""
        self.num_output_tokens += 1
        if self.counts is not None:
            self.counts.append(token_id)
        if self.bad_words is not None:
            self.bad_words.append(token_id)

    def banned_ids(self) -> np.ndarray:
        """Tokens barred from the next draw: bad words, and stop tokens before `min_tokens`."""
        stop_ids = self.stop_ids if self.num_output_tokens < self.params.min_tokens else _NO_IDS
        words = self.bad_words.banned() if self.bad_words is not None else ()
        if not words:
            return stop_ids
        return np.concatenate([stop_ids, np.fromiter(words, np.int64, len(words))])


class SamplingStates:
    """The rows.

    Args:
        max_num_reqs: rows.
        vocab_size: columns of the logits.
        device: where the logits are.
    """

    def __init__(self, max_num_reqs: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._rows: list[RowState | None] = [None] * max_num_reqs
        self._temperature = np.zeros(max_num_reqs, dtype=np.float32)
        self._min_p = np.zeros(max_num_reqs, dtype=np.float32)
        self._top_p = np.ones(max_num_reqs, dtype=np.float64)
        self._top_k = np.full(max_num_reqs, vocab_size, dtype=np.int64)
        self._seeds = np.zeros(max_num_reqs, dtype=np.uint64)

    def add_request(
        self,
        row: int,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> None:
        """Give a request a row.

        Args:
            row: free until now.
            params: complete and checked; `seed` is set.
            output_token_ids: what was generated before a preemption, usually empty.
        """
        assert self._rows[row] is None, f"row {row} is taken"
        assert params.seed is not None, "a request reached the worker without a seed"
        self._rows[row] = RowState(
            params, prompt_token_ids, output_token_ids, vocab_size=self.vocab_size
        )
        self._temperature[row] = 0.0 if params.is_greedy else params.temperature
        self._min_p[row] = params.min_p
        self._top_p[row] = params.top_p
        self._seeds[row] = params.seed % 2**64  # two's complement of a negative one
        self._top_k[row] = min(params.top_k or self.vocab_size, self.vocab_size)

    def remove_request(self, row: int) -> None:
        """Free a row; one that is free already stays so."""
        self._rows[row] = None

    def append_token(self, row: int, token_id: int) -> None:
        """Record a token that was drawn."""
        self._row(row).append(token_id)

    def gather(self, rows: list[int]) -> SamplingMetadata:
        """The record of a step.

        Args:
            rows: those that sample, in the order of the logits.
        """
        states = [self._row(row) for row in rows]
        metadata = SamplingMetadata(
            temperature=self._temperature[rows],
            min_p=self._min_p[rows],
            top_p=self._top_p[rows],
            top_k=self._top_k[rows],
            seeds=self._seeds[rows],
            output_indices=np.array([s.num_output_tokens for s in states], dtype=np.uint64),
        )
        for index, state in enumerate(states):
            _gather_features(metadata, index, state)
        return metadata

    def _row(self, row: int) -> RowState:
        state = self._rows[row]
        assert state is not None, f"row {row} holds no request"
        return state


def _gather_features(metadata: SamplingMetadata, index: int, state: RowState) -> None:
    """Add what the row at `index` uses to the record's lists."""
    params = state.params
    if params.logprobs is not None:
        metadata.num_logprobs[index] = params.logprobs
    if state.allowed_ids is not None:
        metadata.allowed.append(TokenSet(index, state.allowed_ids))
    banned = state.banned_ids()
    if len(banned):
        metadata.banned.append(TokenSet(index, banned))
    if state.bias is not None:
        metadata.bias.append(TokenValues(index, *state.bias))
    counts = state.counts
    if counts is not None and len(counts.token_ids):
        metadata.penalties.append(
            PenaltyInputs(
                index,
                counts.token_ids,
                counts.output_counts,
                presence=params.presence_penalty,
                frequency=params.frequency_penalty,
                repetition=params.repetition_penalty,
            )
        )
