# SPDX-License-Identifier: Apache-2.0
"""The core's rows of logprobs as callers see them: a mapping per position, with decoded tokens."""

from collections.abc import Sequence

from vllm.logprobs import Logprob, LogprobsOnePosition, PromptLogprobs, SampleLogprobs
from vllm.v1.engine.token_text import TokenText
from vllm.v1.outputs import LogprobsLists


class LogprobsProcessor:
    """Logprobs of one output as its tokens come.

    Args:
        token_text: decodes the tokens; None leaves `decoded_token` out.
        context: prompt tokens in front of the output.

    Attributes:
        logprobs: per output token.
        cumulative_logprob: sum over the sampled tokens.
    """

    def __init__(self, token_text: TokenText | None, context: Sequence[int]) -> None:
        self._token_text = token_text
        self._context = list(context[-8:])
        self.logprobs: SampleLogprobs = []
        self.cumulative_logprob = 0.0

    def update(self, rows: LogprobsLists, num_tokens: int) -> None:
        """Add the rows of the first `num_tokens` new tokens; those after a stop string go."""
        for i in range(min(num_tokens, len(rows.token_ids))):
            ids, values = rows.token_ids[i], rows.logprobs[i]
            self.logprobs.append(
                one_position(self._token_text, self._context, ids, values, rows.sampled_ranks[i])
            )
            self.cumulative_logprob += values[0]
            self._context = [*self._context[-7:], ids[0]]


def one_position(
    token_text: TokenText | None,
    context: Sequence[int],
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    rank: int,
) -> LogprobsOnePosition:
    """The token itself first, then the likeliest ones, which may hold it again."""
    position: LogprobsOnePosition = {}
    # Column 0 is the token itself with its rank, the others have ranks 1, 2, ...
    ranks = (rank, *range(1, len(token_ids)))
    for token_id, logprob, token_rank in zip(token_ids, logprobs, ranks, strict=True):
        if token_id not in position:
            decoded = None
            if token_text is not None:
                decoded = token_text.piece_in_context(context, token_id)
            position[token_id] = Logprob(logprob, token_rank, decoded)
    return position


def prompt_logprobs(
    token_text: TokenText | None, prompt_token_ids: Sequence[int], rows: LogprobsLists
) -> PromptLogprobs:
    """One entry per prompt token; the first has none, since nothing precedes it."""
    result: PromptLogprobs = [None]
    for i, ids in enumerate(rows.token_ids):
        context = prompt_token_ids[max(0, i - 7) : i + 1]
        result.append(
            one_position(token_text, context, ids, rows.logprobs[i], rows.sampled_ranks[i])
        )
    return result
