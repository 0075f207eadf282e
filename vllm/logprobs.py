# SPDX-License-Identifier: Apache-2.0
"""Logprobs as callers see them: per position, a mapping from token id to its logprob."""

from dataclasses import dataclass


@dataclass(slots=True)
class Logprob:
    """One token's natural-log probability; rank 1 is the likeliest token of the vocabulary."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobsOnePosition = dict[int, Logprob]
PromptLogprobs = list[LogprobsOnePosition | None]  # None for the first token: nothing precedes it
SampleLogprobs = list[LogprobsOnePosition]
