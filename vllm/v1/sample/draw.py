# SPDX-License-Identifier: Apache-2.0
"""One token per row: the inverse of the row's cumulative distribution at a uniform number.

A function of the row's scores and its number alone; where the numbers come from, see `random`.
"""

import numpy as np
import torch
from torch import Tensor

# R rows, V vocabulary, B tokens a block.
_BLOCK = 256


def draw_tokens(scores: Tensor, uniforms: np.ndarray, *, overwrite: bool = False) -> Tensor:
    """The inverse of each row's cumulative distribution at a uniform number.

    The sum runs over blocks of 256 tokens and then inside one, both in float64, so that no
    rounding reaches past a token of probability zero: a block is chosen only where the running
    sum grows, and inside it the same holds, with the last likely token as the end.

    Args:
        scores: [R, V], float32, logits minus the row's largest: the largest is 0, masked is -inf.
        uniforms: [R], float64, from [0, 1).
        overwrite: whether `scores` may be lost.

    Returns:
        [R], int64.
    """
    weights = scores.exp_() if overwrite else scores.exp()
    block_sums = sum_blocks(weights).cumsum(-1)
    u = torch.from_numpy(uniforms).to(scores.device)
    target = u * block_sums[:, -1]
    # A product that rounds up to the total would name no block; the last one that grows is meant.
    target = torch.minimum(target, torch.nextafter(block_sums[:, -1], torch.zeros_like(target)))
    block = (block_sums <= target[:, None]).sum(-1)
    before = torch.where(
        block > 0, block_sums.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0
    )
    return _draw_in_block(weights, block, target - before)


def sum_blocks(weights: Tensor) -> Tensor:
    """Sums over blocks of 256 columns, the last one shorter: [R, ceil(V / 256)], float64.

    A sum over a short contiguous run does not depend on how many rows there are, which a sum over
    the whole row does not promise.
    """
    whole = weights.shape[1] // _BLOCK * _BLOCK
    sums = [weights[:, :whole].view(-1, whole // _BLOCK, _BLOCK).sum(-1)] if whole else []
    if whole < weights.shape[1]:
        sums.append(weights[:, whole:].sum(-1, keepdim=True))
    return torch.cat(sums, dim=1).double()


def _draw_in_block(weights: Tensor, block: Tensor, residual: Tensor) -> Tensor:
    """The first token of each row's block at which the running sum exceeds `residual`."""
    offsets = torch.arange(_BLOCK, device=weights.device)
    columns = block[:, None] * _BLOCK + offsets
    is_inside = columns < weights.shape[1]
    inside = weights.gather(1, columns.clamp(max=weights.shape[1] - 1)).double()
    inside = torch.where(is_inside, inside, 0.0)
    last_likely = torch.where(inside > 0, offsets, 0).amax(-1)
    offset = (inside.cumsum(-1) <= residual[:, None]).sum(-1)
    return block * _BLOCK + torch.minimum(offset, last_likely)
