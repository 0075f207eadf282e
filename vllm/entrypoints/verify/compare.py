# SPDX-License-Identifier: Apache-2.0
"""Two sets of logprobs over the same tokens: how far apart, and where greedy choices part.

Pure arithmetic; knows neither engine nor Transformers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Both sides sum in float32, in different orders: some 1e-6 to 1e-5 on models of any size.
FLOAT32_TOLERANCE = 1e-4
# In a short dtype the engine rounds as often as the reference does, at other places: its errors
# have the same size but other signs. The largest of them scatters, the mean hardly does. What a
# dropped sink, window or scale changes is many times that.
LARGEST_ALLOWANCE = 2.0
MEAN_ALLOWANCE = 1.5

Row = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Parting:
    """The first output token that the reference would have chosen otherwise.

    Attributes:
        position: among the output tokens, from 1.
        engine_token: the engine's choice.
        reference_token: the reference's.
        gap: by how much the reference prefers its own, in logprob.
    """

    position: int
    engine_token: int
    reference_token: int
    gap: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt.

    Attributes:
        prompt_difference: largest difference of a logprob over the prompt's tokens.
        output_difference: the same over the output's tokens.
        mean_difference: over all tokens and listed ids.
        worst_position: number of the token, from 1 and prompt included, where it is largest.
        parting: where greedy choices part; None if nowhere.
    """

    prompt_difference: float
    output_difference: float
    mean_difference: float
    worst_position: int
    parting: Parting | None

    @property
    def difference(self) -> float:
        """Over all tokens."""
        return max(self.prompt_difference, self.output_difference)


def compare(
    rows: Sequence[Row],
    reference: Sequence[Row],
    output: Sequence[int],
    *,
    num_listed: int,
) -> Comparison:
    """Compare row by row.

    Args:
        rows: logprobs of some ids per token, from the second of the prompt to the last of the
            output; each holds the `num_listed` likeliest.
        reference: the same from the reference; holds every id of `rows`, and its own likeliest.
        output: the output's token ids; they are the last tokens.
        num_listed: see `rows`.
    """
    differences = [
        row_differences(row, wanted, num_listed)
        for row, wanted in zip(rows, reference, strict=True)
    ]
    largest = [max(row) for row in differences]
    every = [value for row in differences for value in row]
    num_prompt_rows = len(rows) - len(output)
    worst = max(range(len(largest)), key=largest.__getitem__, default=0)
    return Comparison(
        prompt_difference=max(largest[:num_prompt_rows], default=0.0),
        output_difference=max(largest[num_prompt_rows:], default=0.0),
        mean_difference=sum(every) / max(1, len(every)),
        worst_position=worst + 2,
        parting=_parting(output, reference[num_prompt_rows:]),
    )


def row_differences(row: Row, reference: Row, num_listed: int) -> list[float]:
    """Differences of one token's logprobs, at least one.

    An id that only the reference lists is at most as likely as the last one of `row`'s list;
    where the reference says more than that, the excess counts.
    """
    if not row:
        return [math.inf]
    bound = sorted(row.values(), reverse=True)[: max(1, num_listed)][-1]
    differences = [0.0]
    for token, wanted in reference.items():
        difference = abs(row[token] - wanted) if token in row else wanted - bound
        if token in row or not difference <= 0:
            differences.append(math.inf if math.isnan(difference) else difference)
    return differences


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The largest differences that count as agreement.

    Attributes:
        largest: of any logprob.
        mean: of the mean over a run; None if the largest says enough.
        why: where the numbers come from.
    """

    largest: float
    mean: float | None
    why: str

    def allows(self, comparisons: Sequence[Comparison]) -> bool:
        """Whether all prompts agree."""
        if any(not c.difference <= self.largest for c in comparisons):
            return False
        return self.mean is None or mean_of(comparisons) <= self.mean


def mean_of(comparisons: Sequence[Comparison]) -> float:
    """Mean difference over prompts."""
    return sum(c.mean_difference for c in comparisons) / max(1, len(comparisons))


def tolerance_for(dtype: str, rounding: Sequence[Comparison]) -> Tolerance:
    """What counts as agreement.

    Args:
        dtype: the engine's.
        rounding: the reference in `dtype` against itself in a wider one; empty only for float32.
    """
    if not rounding:
        assert dtype == "float32", "short dtypes are judged by the reference's own rounding"
        return Tolerance(FLOAT32_TOLERANCE, None, "float32 on both sides")
    return Tolerance(
        max(FLOAT32_TOLERANCE, LARGEST_ALLOWANCE * max(c.difference for c in rounding)),
        max(FLOAT32_TOLERANCE, MEAN_ALLOWANCE * mean_of(rounding)),
        f"{LARGEST_ALLOWANCE:g} and {MEAN_ALLOWANCE:g} times what {dtype} alone does to the "
        "reference",
    )


def _parting(output: Sequence[int], reference: Sequence[Row]) -> Parting | None:
    for position, (token, row) in enumerate(zip(output, reference, strict=True), 1):
        best = max(row, key=row.__getitem__)
        if best != token and row[best] > row[token]:
            return Parting(position, token, best, row[best] - row[token])
    return None
