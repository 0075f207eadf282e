# SPDX-License-Identifier: Apache-2.0
"""Merging partial attention results, and the one place where attention sinks enter.

A partial is (output, lse): output is normalised over the keys the partial has seen, lse is the
natural logarithm of the sum of exp(score) over them, -inf where it has seen none. Sinks are one
more partial whose output is 0 and whose lse is the sink logit; they are added once, last.

Shapes: N heads (any leading shape broadcasts), D value size.
"""

import torch
from torch import Tensor


def merge_attn_states(
    output_a: Tensor, lse_a: Tensor, output_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Merge two partials over disjoint sets of keys.

    Args:
        output_a: [..., D], fp32; `output_b` likewise.
        lse_a: [...], fp32, natural logarithm; `lse_b` likewise.

    Returns:
        The partial over both sets; output 0 and lse -inf where both are empty.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    # -inf minus -inf is NaN: where both are empty the weights do not matter, so use 0.
    safe = lse.masked_fill(lse == -torch.inf, 0.0)
    weight_a = torch.exp(lse_a - safe).unsqueeze(-1)
    weight_b = torch.exp(lse_b - safe).unsqueeze(-1)
    return output_a * weight_a + output_b * weight_b, lse


def apply_sinks(output: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Let each head's sink take its share of the probability.

    Args:
        output: [..., N, D], fp32, complete over all keys.
        lse: [..., N], fp32, natural logarithm, without the sink.
        sinks: [N], one logit per query head, neither scaled nor capped; any float dtype.

    Returns:
        [..., N, D]: `output` times exp(lse) / (exp(lse) + exp(sinks)).
    """
    return output * torch.sigmoid(lse - sinks.float()).unsqueeze(-1)
