# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding of queries and keys. Source: RoFormer, arXiv 2104.09864."""

import torch
from torch import Tensor

from vllm import _custom_ops as custom_ops
from vllm.ir.op import Tolerance, op


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, is_neox: bool) -> Tensor:
    """x: [T, N, R]; cos, sin: [T, 1, R / 2]; products in fp32, rounded once."""
    if is_neox:
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    first, second = x[..., ::2].float(), x[..., 1::2].float()
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)


@op
def rotary_embedding_(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,
) -> None:
    """Rotate the first `rotary_dim` elements of each head, in place.

    Args:
        positions: [T], int64, each below the cache's rows.
        query: [T, Hq * head_size]; rows may be apart, elements of a row may not.
        key: [T, Hk * head_size], likewise.
        cos_sin_cache: [max_position, rotary_dim], fp32: cosines, then sines.
        head_size: elements per head.
        is_neox: pair element i with i + rotary_dim / 2; otherwise 2i with 2i + 1.
    """
    rotary_dim = cos_sin_cache.shape[-1]
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    for x in (query, key):
        heads = x.view(x.shape[0], -1, head_size)[..., :rotary_dim]
        heads.copy_(_rotate(heads, cos, sin, is_neox))


@op
def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,
) -> tuple[Tensor, Tensor]:
    """`rotary_embedding_` on copies: the rotated query and key, contiguous."""
    query, key = query.clone(), key.clone()
    rotary_embedding_.reference(positions, query, key, cos_sin_cache, head_size, is_neox)
    return query, key


for _op in (rotary_embedding, rotary_embedding_):
    _op.tolerance |= {
        torch.float32: Tolerance(1e-6, 1e-6, "fused multiply-add"),
        torch.bfloat16: Tolerance(1e-2, 1.6e-2, "7-bit mantissa, one rounding apart"),
        torch.float16: Tolerance(1e-3, 2e-3, "10-bit mantissa, one rounding apart"),
    }


def _takes(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,
) -> bool:
    return custom_ops.takes_rows(query) and custom_ops.takes_rows(key)


@rotary_embedding_.implement("cpp", when=_takes, available=custom_ops.is_available())
def _rotary_embedding_cpp(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,
) -> None:
    custom_ops.rotary_embedding_(positions, query, key, cos_sin_cache, head_size, is_neox)


@rotary_embedding.implement("cpp", when=_takes, available=custom_ops.is_available())
def _rotary_embedding_copy_cpp(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,
) -> tuple[Tensor, Tensor]:
    query, key = query.clone(), key.clone()
    custom_ops.rotary_embedding_(positions, query, key, cos_sin_cache, head_size, is_neox)
    return query, key
