# SPDX-License-Identifier: Apache-2.0
"""What a worker returns for a step."""

from dataclasses import dataclass, field
from typing import NamedTuple

# What a row's own sampling fields can make impossible; the client is told so (HTTP 400).
ALL_MASKED = (
    "no token may be drawn: structured_outputs, allowed_token_ids, bad_words and min_tokens "
    "together exclude the whole vocabulary"
)

OVERFLOW = (
    "penalties and logit_bias drive a logit beyond what float32 holds; bring repetition_penalty "
    "closer to 1"
)
REQUEST_FAULTS = frozenset({ALL_MASKED, OVERFLOW})


class LogprobsLists(NamedTuple):
    """Logprobs of some positions. Column 0 is the sampled (or prompt) token itself, columns 1
    to k the k likeliest in falling order.

    Attributes:
        token_ids: [num_positions][1 + k]
        logprobs: [num_positions][1 + k], natural log
        sampled_ranks: [num_positions], rank of column 0's token, from 1
    """

    token_ids: list[list[int]]
    logprobs: list[list[float]]
    sampled_ranks: list[int]


@dataclass(slots=True)
class ModelRunnerOutput:
    """One step's results, by request.

    Attributes:
        sampled_token_ids: new tokens of each request that was given its last prompt token or
            a decode token; a request still inside its prompt is absent.
        logprobs: rows for the sampled tokens of requests that asked.
        prompt_logprobs: rows for prompt positions 1 .. n - 1 computed in this step, of requests
            that asked; the scheduler gathers them until the prompt is complete.
        errors: requests whose own computation failed (a non-finite row, a grammar that broke);
            they end alone.
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, LogprobsLists] = field(default_factory=dict)
    prompt_logprobs: dict[str, LogprobsLists] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


EMPTY_MODEL_RUNNER_OUTPUT = ModelRunnerOutput()
