# SPDX-License-Identifier: Apache-2.0
"""What the sampler is told about one step: an immutable record, gathered from the rows.

Rows are numbered as the logits are. A feature that no row uses is an empty list, and costs
nothing.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class TokenValues:
    """Values to add to the logits of some tokens of one row."""

    row: int
    token_ids: np.ndarray  # [n] int64
    values: np.ndarray  # [n] float32


@dataclass(frozen=True, slots=True)
class TokenSet:
    """Some tokens of one row."""

    row: int
    token_ids: np.ndarray  # [n] int64


@dataclass(frozen=True, slots=True)
class PenaltyInputs:
    """Penalties of one row, and the tokens they reach.

    Attributes:
        token_ids: [n], int64, each once.
        output_counts: [n], float32, occurrences in the output; 0 for tokens of the prompt alone.
    """

    row: int
    token_ids: np.ndarray
    output_counts: np.ndarray
    presence: float
    frequency: float
    repetition: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMetadata:
    """One step.

    Attributes:
        temperature: [N], float32; 0 takes the likeliest token.
        min_p: [N], float32; 0 is off.
        top_p: [N], float64; 1 is off.
        top_k: [N], int64; the vocabulary's size is off.
        seeds: [N], uint64, of each row's request.
        output_indices: [N], uint64, how many tokens the row's output has already.
        num_logprobs: how many top logprobs each row wants that wants any; -1 is all.
        allowed: rows that may draw only some tokens.
        banned: tokens that may not be drawn in this step.
        bias: what `logit_bias` adds.
        penalties: rows with a penalty.
    """

    temperature: np.ndarray
    min_p: np.ndarray
    top_p: np.ndarray
    top_k: np.ndarray
    seeds: np.ndarray
    output_indices: np.ndarray
    num_logprobs: dict[int, int] = field(default_factory=dict)
    allowed: list[TokenSet] = field(default_factory=list)
    banned: list[TokenSet] = field(default_factory=list)
    bias: list[TokenValues] = field(default_factory=list)
    penalties: list[PenaltyInputs] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """Rows that sample in this step."""
        return len(self.seeds)

    @property
    def random_rows(self) -> np.ndarray:
        """Rows that draw, in order; the others take the likeliest token."""
        return np.nonzero(self.temperature > 0.0)[0]
