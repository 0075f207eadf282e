# SPDX-License-Identifier: Apache-2.0
"""Draws one token for each row of logits. The order of the steps is the sampler's contract."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from vllm.config.model import LogprobsMode
from vllm.v1.outputs import ALL_MASKED, OVERFLOW, LogprobsLists
from vllm.v1.sample.draw import draw_tokens
from vllm.v1.sample.logits_processors import (
    apply_allowed,
    apply_banned,
    apply_bias,
    apply_grammar_bitmask,
)
from vllm.v1.sample.logprobs import gather_logprobs
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.penalties import apply_penalties
from vllm.v1.sample.random import uniform
from vllm.v1.sample.topk_topp import apply_min_p, apply_top_k_top_p

NON_FINITE = (
    "the model returned logits that are not finite (NaN or infinity) for this request; the "
    "output ends here"
)


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One step's tokens.

    Attributes:
        token_ids: [N]; without meaning for rows in `errors`.
        logprobs: [N], one position each, None for rows that did not ask or failed.
        errors: why a row could not be drawn, by row.
    """

    token_ids: list[int]
    logprobs: list[LogprobsLists | None]
    errors: dict[int, str] = field(default_factory=dict)


class Sampler:
    """Draws, in this order:

    1. Rows with logits that are not finite are set aside; each fails alone.
    2. Raw logprobs or logits are kept for rows that want logprobs, if the mode is a raw one.
    3. Masks: allowed token ids; bad words, and stop tokens before `min_tokens`; grammar.
    4. `logit_bias`.
    5. Penalties: repetition, frequency, presence.
    6. Rows that masks left without a token are set aside; each fails alone.
    7. Greedy rows take the largest logit, of equals the lowest id. They are done.
    8. Temperature, `min_p`, `top_k`, `top_p`; then the draw, by seed and output index.
    9. Logprobs of the token and of the likeliest ones. Processed ones are taken after 5 for
       greedy rows and after 8 for the others.

    Upstream has the same order but for the grammar, which there is applied before 2, so that
    its raw logprobs know of the grammar; here raw means the model's own. Everything runs in
    float32, sums in float64. A step in which all rows are greedy and plain is one argmax.

    Args:
        logprobs_mode: what logprobs are; see 2 and 9.
    """

    def __init__(self, logprobs_mode: LogprobsMode = "raw_logprobs") -> None:
        self._is_raw = logprobs_mode.startswith("raw")
        self._is_logits = logprobs_mode.endswith("logits")

    def __call__(
        self, logits: Tensor, metadata: SamplingMetadata, bitmask: Tensor | None = None
    ) -> SamplerOutput:
        """Draw.

        Args:
            logits: [N, V]; written over, and without meaning afterwards.
            metadata: of the same N rows.
            bitmask: [N, ceil(V / 32)], int32; None where no row has a grammar.
        """
        logits = logits.float().contiguous()
        errors: dict[int, str] = {}
        likeliest = logits.argmax(-1)
        self._set_aside(logits, likeliest, NON_FINITE, errors)
        with_logprobs = sorted(metadata.num_logprobs)
        values = self._values(logits, with_logprobs) if self._is_raw else None
        if self._process(logits, metadata, bitmask):
            likeliest = logits.argmax(-1)
            self._set_aside(logits, likeliest, ALL_MASKED, errors)
        token_ids, filtered = self._draw(logits, likeliest, metadata)
        if values is None:
            values = self._values(filtered if filtered is not None else logits, with_logprobs)
        logprobs = self._logprobs(values, with_logprobs, token_ids, metadata, errors)
        return SamplerOutput(token_ids.tolist(), logprobs, errors)

    def _set_aside(
        self, logits: Tensor, likeliest: Tensor, reason: str, errors: dict[int, str]
    ) -> None:
        """Note rows without a finite largest logit, and make them harmless to the rest.

        argmax takes NaN for the largest, so the value there tells NaN, infinity and all-masked.
        """
        largest = logits.gather(1, likeliest[:, None])[:, 0]
        for row in torch.nonzero(~largest.isfinite())[:, 0].tolist():
            overflows = reason == ALL_MASKED and float(largest[row]) != -torch.inf
            errors.setdefault(row, OVERFLOW if overflows else reason)
            logits[row].zero_()

    def _process(self, logits: Tensor, metadata: SamplingMetadata, bitmask: Tensor | None) -> bool:
        """Masks, bias and penalties in place; False if there was nothing to do."""
        apply_allowed(logits, metadata.allowed)
        apply_banned(logits, metadata.banned)
        apply_grammar_bitmask(logits, bitmask)
        apply_bias(logits, metadata.bias)
        apply_penalties(logits, metadata.penalties)
        lists = (metadata.allowed, metadata.banned, metadata.bias, metadata.penalties)
        return bitmask is not None or any(lists)

    def _draw(
        self, logits: Tensor, likeliest: Tensor, metadata: SamplingMetadata
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens [N], and where processed values are wanted of drawn rows, the logits they
        were drawn from [N, V]."""
        rows = metadata.random_rows
        if not len(rows):
            return likeliest, None
        index = torch.from_numpy(rows).to(logits.device)
        picked = logits if len(rows) == len(logits) else logits[index]
        largest = logits.gather(1, likeliest[:, None])[index]
        temperature = torch.from_numpy(metadata.temperature[rows]).to(logits.device)[:, None]
        # The largest becomes 0 before the division: a tiny temperature cannot overflow.
        # Overwriting what nobody reads again spares fresh memory, which costs more than the sums.
        is_read_again = not self._is_raw and bool(metadata.num_logprobs)
        scores = (picked.clone() if is_read_again else picked).sub_(largest).div_(temperature)
        apply_min_p(scores, metadata.min_p[rows])
        apply_top_k_top_p(scores, metadata.top_k[rows], metadata.top_p[rows])
        uniforms = uniform(metadata.seeds[rows], metadata.output_indices[rows])
        drawn = draw_tokens(scores, uniforms, overwrite=not is_read_again)
        token_ids = likeliest.index_copy(0, index, drawn)
        if not is_read_again:
            return token_ids, None
        filtered = torch.where(scores == -torch.inf, scores, picked / temperature)
        return token_ids, logits.index_copy(0, index, filtered)

    def _values(self, logits: Tensor, rows: list[int]) -> Tensor:
        """What logprobs are made of, for some rows: [len(rows), V], apart from `logits`."""
        picked = logits[rows]
        return picked if self._is_logits else torch.log_softmax(picked, dim=-1)

    def _logprobs(
        self,
        values: Tensor,
        rows: list[int],
        token_ids: Tensor,
        metadata: SamplingMetadata,
        errors: dict[int, str],
    ) -> list[LogprobsLists | None]:
        """Logprobs by row of the batch; `values` has those of `rows`."""
        logprobs: list[LogprobsLists | None] = [None] * len(token_ids)
        by_count: dict[int, list[int]] = {}
        for position, row in enumerate(rows):
            if row not in errors:
                by_count.setdefault(metadata.num_logprobs[row], []).append(position)
        for count, positions in by_count.items():
            of_rows = [rows[position] for position in positions]
            lists = gather_logprobs(values[positions], token_ids[of_rows], count)
            for i, row in enumerate(of_rows):
                logprobs[row] = LogprobsLists(
                    lists.token_ids[i : i + 1],
                    lists.logprobs[i : i + 1],
                    lists.sampled_ranks[i : i + 1],
                )
        return logprobs
