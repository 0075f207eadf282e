# SPDX-License-Identifier: Apache-2.0
"""The definition of attention over a paged cache: fallback and oracle of every kernel.

One op: queries of any length (prefill, extend, decode, mixed) over paged keys, causal or not.
Scores are s = scale * q.k, then soft-capped, then masked, all in fp32; attention sinks follow
`merge_attn_states`. Where PyTorch has a fused kernel with the same fp32 arithmetic it is used
for the partials; soft caps and values narrower than keys take the explicit softmax.

Shapes: T query rows, N query heads, K key/value heads, G = N / K, D key size, E value size,
B requests of a tile, L queries per request, S keys per request.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm.v1.attention.ops.merge_attn_states import apply_sinks, merge_attn_states
from vllm.v1.attention.ops.tiles import PagedBatch, Tile, TilePlan, plan_tiles

_MAX_SCORES_BYTES = 64 * 2**20  # of one explicit softmax; longer query ranges are cut


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """How scores are made, beyond the dot product.

    Attributes:
        scale: factor on q.k.
        causal: a query sees no later position.
        sliding_window: keys a query sees, itself included; None is all.
        logits_soft_cap: c in s -> c * tanh(s / c); None is no cap.
    """

    scale: float
    causal: bool = True
    sliding_window: int | None = None
    logits_soft_cap: float | None = None


def paged_attention(
    query: Tensor,
    kv_cache: Tensor,
    batch: PagedBatch,
    rule: AttentionRule,
    *,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend each query of a flat batch to its request's cached keys.

    Args:
        query: [T, N, D], fp32, fp16 or bf16.
        kv_cache: [num_blocks, block_size, K, D + E]; unwritten slots are never read.
        batch: which rows belong to which request, and where its keys are.
        rule: scale, causality, window and soft cap.
        sinks: [N], one logit per query head, or None.

    Returns:
        Output [T, N, E] in the dtype of `query`, 0 where a row sees no key; and the natural-log
        LSE [T, N] in fp32, without the sinks, -inf where a row sees no key.

    Raises:
        ValueError: N is not a multiple of K.
    """
    plan = plan_tiles(
        batch,
        causal=rule.causal,
        sliding_window=rule.sliding_window,
        device=query.device,
    )
    output = query.new_empty(*query.shape[:2], kv_cache.shape[-1] - query.shape[-1])
    lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    attend_tiles(query, kv_cache, plan, rule, sinks=sinks, output=output, lse=lse)
    return output, lse


def attend_tiles(
    query: Tensor,
    kv_cache: Tensor,
    plan: TilePlan,
    rule: AttentionRule,
    *,
    output: Tensor,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
) -> None:
    """`paged_attention` for a plan made before (once for all layers of a step).

    Rows outside the plan are left as they are.
    """
    num_heads, num_kv_heads = query.shape[1], kv_cache.shape[2]
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not divide over {num_kv_heads} KV heads")
    for tile in plan.tiles:
        tile_output, tile_lse = _attend_tile(query[tile.rows], kv_cache, tile, rule)
        if sinks is not None:
            tile_output = apply_sinks(tile_output, tile_lse, sinks)
        output[tile.rows] = tile_output.to(output.dtype)
        if lse is not None:
            lse[tile.rows] = tile_lse
    if plan.uncovered_rows:
        output[plan.uncovered_rows] = 0
        if lse is not None:
            lse[plan.uncovered_rows] = -torch.inf


def _attend_tile(
    query: Tensor, kv_cache: Tensor, tile: Tile, rule: AttentionRule
) -> tuple[Tensor, Tensor]:
    """Output [rows, N, E] and LSE [rows, N] of one tile, both fp32, without sinks."""
    num_heads, key_size = query.shape[1:]
    num_kv_heads, width = kv_cache.shape[2:]
    pages = kv_cache.view(-1, num_kv_heads * width).index_select(0, tile.slots).float()
    kv_BKSW = pages.view(tile.num_reqs, tile.num_keys, num_kv_heads, width).transpose(1, 2)
    key_BKSD, value_BKSE = kv_BKSW[..., :key_size], kv_BKSW[..., key_size:]
    group = num_heads // num_kv_heads
    query_BLKGD = query.float().view(tile.num_reqs, tile.num_queries, num_kv_heads, group, key_size)
    query_BKGLD = query_BLKGD.permute(0, 2, 3, 1, 4)
    if _has_fused_kernel(query, key_size, width, rule):
        out_BKGLE, lse_BKGL = _fused(query_BKGLD, key_BKSD, value_BKSE, tile, rule.scale)
    else:
        out_BKGLE, lse_BKGL = _explicit(query_BKGLD, key_BKSD, value_BKSE, tile, rule)
    out = out_BKGLE.permute(0, 3, 1, 2, 4).reshape(-1, num_heads, width - key_size)
    return out, lse_BKGL.permute(0, 3, 1, 2).reshape(-1, num_heads)


def _has_fused_kernel(query: Tensor, key_size: int, width: int, rule: AttentionRule) -> bool:
    same_size = width == 2 * key_size
    return query.device.type == "cpu" and same_size and rule.logits_soft_cap is None


def _fused(
    query_BKGLD: Tensor, key_BKSD: Tensor, value_BKSE: Tensor, tile: Tile, scale: float
) -> tuple[Tensor, Tensor]:
    """The tile through PyTorch's fused CPU kernel, which takes two batch dims and rows."""
    num_reqs, num_kv_heads, group, num_queries, key_size = query_BKGLD.shape
    if num_queries == 1:
        # The heads of a group share their keys: they are the rows.
        mask = None if tile.mask is None else _additive(tile.mask).unsqueeze(1)
        query = query_BKGLD.view(num_reqs, num_kv_heads, group, key_size)
        out, lse = _flash(query, key_BKSD, value_BKSE, scale, mask=mask)
        return out.unsqueeze(3), lse.unsqueeze(3)
    query = query_BKGLD[0]
    num_keys = key_BKSD.shape[2]
    key = key_BKSD[0].unsqueeze(1).expand(-1, group, -1, -1)
    value = value_BKSE[0].unsqueeze(1).expand(-1, group, -1, -1)
    if not tile.causal:
        mask = None if tile.mask is None else _additive(tile.mask).unsqueeze(0)
        out, lse = _flash(query, key, value, scale, mask=mask)
    else:
        # Keys before the queries are seen by all of them; the rest is a square triangle.
        split = num_keys - num_queries
        out, lse = _flash(query, key[:, :, split:], value[:, :, split:], scale, causal=True)
        if split:
            earlier = _flash(query, key[:, :, :split], value[:, :, :split], scale)
            out, lse = merge_attn_states(out, lse, *earlier)
    return out.unsqueeze(0), lse.unsqueeze(0)


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """[X, Y, R, D] queries over [X, Y, S, D] keys; every row must see a key."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, is_causal=causal, attn_mask=mask, scale=scale
    )
    return out, lse


def _additive(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)


def _explicit(
    query_BKGLD: Tensor, key_BKSD: Tensor, value_BKSE: Tensor, tile: Tile, rule: AttentionRule
) -> tuple[Tensor, Tensor]:
    """The tile by plain matrix products, in ranges of queries that bound the scores."""
    num_reqs, num_kv_heads, group, num_queries, _ = query_BKGLD.shape
    num_keys = key_BKSD.shape[2]
    row_bytes = 4 * num_reqs * num_kv_heads * group * num_keys
    chunk = max(1, min(num_queries, _MAX_SCORES_BYTES // row_bytes))
    key_BKDS = key_BKSD.transpose(-1, -2)
    outs, lses = [], []
    for begin in range(0, num_queries, chunk):
        end = min(begin + chunk, num_queries)
        query = query_BKGLD[:, :, :, begin:end]
        scores = torch.matmul(query.flatten(2, 3) * rule.scale, key_BKDS)
        if rule.logits_soft_cap is not None:
            scores = scores.div_(rule.logits_soft_cap).tanh_().mul_(rule.logits_soft_cap)
        scores = scores.view(num_reqs, num_kv_heads, group, end - begin, num_keys)
        mask = _visible(tile, begin, end)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        lse = torch.logsumexp(scores, dim=-1)
        probs = torch.exp(scores - lse.unsqueeze(-1)).flatten(2, 3)
        outs.append(torch.matmul(probs, value_BKSE).view(*scores.shape[:4], -1))
        lses.append(lse)
    return torch.cat(outs, dim=3), torch.cat(lses, dim=3)


def _visible(tile: Tile, begin: int, end: int) -> Tensor | None:
    """[num_reqs, end - begin, num_keys] for a range of the tile's queries; None is all."""
    if tile.mask is not None:
        return tile.mask[:, begin:end]
    if not tile.causal:
        return None
    key = torch.arange(tile.num_keys, device=tile.slots.device)
    query = key[tile.num_keys - tile.num_queries :][begin:end]
    return (key <= query[:, None]).unsqueeze(0)
