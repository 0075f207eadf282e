# SPDX-License-Identifier: Apache-2.0
"""Presence, frequency and repetition penalties over the tokens a row has seen.

Counts are sparse and grow with the output: a row without penalties keeps nothing, a row with
penalties keeps two numbers per distinct token, and no [rows, vocabulary] array exists.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from vllm.v1.sample.metadata import PenaltyInputs


class TokenCounts:
    """Distinct tokens of a row, and how often each occurs in its output."""

    def __init__(self, prompt_token_ids: Iterable[int], output_token_ids: Iterable[int]) -> None:
        self._slot_of: dict[int, int] = {}
        self._token_ids = np.empty(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)
        for token_id in prompt_token_ids:
            self._slot(token_id)
        for token_id in output_token_ids:
            self.append(token_id)

    @property
    def token_ids(self) -> np.ndarray:
        """[n], int64, in order of first occurrence."""
        return self._token_ids[: len(self._slot_of)]

    @property
    def output_counts(self) -> np.ndarray:
        """[n], float32, occurrences in the output."""
        return self._counts[: len(self._slot_of)]

    def append(self, token_id: int) -> None:
        """Count one more output token."""
        slot = self._slot(token_id)  # first: it may replace the arrays by larger ones
        self._counts[slot] += 1.0

    def _slot(self, token_id: int) -> int:
        slot = self._slot_of.get(token_id)
        if slot is None:
            slot = self._slot_of[token_id] = len(self._slot_of)
            if slot == len(self._token_ids):
                self._token_ids = np.concatenate([self._token_ids, self._token_ids])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._token_ids[slot] = token_id
        return slot


def apply_penalties(logits: Tensor, penalties: Sequence[PenaltyInputs]) -> None:
    """Apply all penalties in place: repetition, then frequency, then presence.

    A positive logit of a token seen in prompt or output is divided by the repetition penalty, a
    negative one multiplied; then frequency times the count in the output and, where the count is
    above zero, presence are subtracted.

    Args:
        logits: [N, V], float32, contiguous.
        penalties: at most one entry a row.
    """
    if not penalties:
        return
    vocab_size = logits.shape[1]
    lengths = [len(p.token_ids) for p in penalties]
    flat_ids = np.concatenate([p.row * vocab_size + p.token_ids for p in penalties])
    counts = np.concatenate([p.output_counts for p in penalties])

    def spread(values: list[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), lengths))

    subtracted = spread([p.frequency for p in penalties]) * torch.from_numpy(counts)
    subtracted += spread([p.presence for p in penalties]) * torch.from_numpy(counts > 0)
    repetition = spread([p.repetition for p in penalties]).to(logits.device)
    index = torch.from_numpy(flat_ids).to(logits.device)
    flat = logits.view(-1)
    seen = flat[index]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    flat[index] = seen - subtracted.to(logits.device)
