# SPDX-License-Identifier: Apache-2.0
"""Attention in fp64 over dense sequences, one row at a time: what every backend is held to.

Written from the rule alone and sharing no code with the engine: the visible keys of a row are
listed, their scores made, the sink's term added to the denominator.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vllm.v1.attention.ops.tiles import PagedBatch


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One sequence. query [L, N, D] are the last L positions of key [S, K, D], value [S, K, E].

    Returns:
        Output [L, N, E] and the LSE without the sink [L, N], both fp64.
    """
    query, key, value = query.double(), key.double(), value.double()
    sinks = None if sinks is None else sinks.double()
    num_queries, num_heads, _ = query.shape
    num_keys, num_kv_heads, _ = key.shape
    output = torch.zeros(num_queries, num_heads, value.shape[-1], dtype=torch.float64)
    lse = torch.full((num_queries, num_heads), -math.inf, dtype=torch.float64)
    group = num_heads // num_kv_heads
    keys = torch.arange(num_keys)
    for row in range(num_queries):
        position = num_keys - num_queries + row
        seen = keys <= position if causal else torch.full((num_keys,), position >= 0)
        if window is not None:
            seen = seen & ((keys - position).abs() < window)
        if not seen.any():
            continue
        key_of_head = key[seen].repeat_interleave(group, dim=1)
        value_of_head = value[seen].repeat_interleave(group, dim=1)
        scores = (key_of_head * query[row]).sum(-1) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        lse[row] = torch.logsumexp(scores, 0)
        top = scores.max(0).values if sinks is None else scores.max(0).values.maximum(sinks)
        weights = torch.exp(scores - top)
        total = weights.sum(0)
        if sinks is not None:
            total = total + torch.exp(sinks - top)
        output[row] = (weights[..., None] * value_of_head).sum(0) / total[:, None]
    return output, lse


@dataclass
class PagedCase:
    """Random sequences laid out in a paged cache whose unwritten slots hold NaN.

    Args:
        lens: per request (queries in the step, keys in all).
        shape: query heads, KV heads, key size, value size.
    """

    lens: list[tuple[int, int]]
    shape: tuple[int, int, int, int] = (4, 2, 16, 16)
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    seed: int = 0
    queries: list[Tensor] = field(init=False)
    keys: list[Tensor] = field(init=False)
    values: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        num_heads, num_kv_heads, key_size, value_size = self.shape

        def rand(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(self.dtype)

        self.queries = [rand(q, num_heads, key_size) for q, _ in self.lens]
        self.keys = [rand(s, num_kv_heads, key_size) for _, s in self.lens]
        self.values = [rand(s, num_kv_heads, value_size) for _, s in self.lens]
        needed = [-(-s // self.block_size) for _, s in self.lens]
        num_blocks = sum(needed) + 2
        ids = torch.randperm(num_blocks - 1, generator=generator) + 1
        # Entries past a row's blocks name a block that does not exist.
        self.block_table = torch.full((len(self.lens), max([*needed, 1])), 10**6, dtype=torch.int32)
        self.kv_cache = torch.full(
            (num_blocks, self.block_size, num_kv_heads, key_size + value_size),
            torch.nan,
            dtype=self.dtype,
        )
        flat = self.kv_cache.view(-1, num_kv_heads, key_size + value_size)
        taken = 0
        for req, (_, num_keys) in enumerate(self.lens):
            blocks = ids[taken : taken + needed[req]]
            taken += needed[req]
            self.block_table[req, : len(blocks)] = blocks.int()
            positions = torch.arange(num_keys)
            slots = blocks[positions // self.block_size] * self.block_size
            flat[slots + positions % self.block_size] = torch.cat(
                (self.keys[req], self.values[req]), -1
            )

    @property
    def batch(self) -> PagedBatch:
        """The case as the op takes it."""
        starts = torch.tensor([0, *(q for q, _ in self.lens)]).cumsum(0)
        return PagedBatch(
            query_start_loc=starts.int().numpy(),
            seq_lens=torch.tensor([s for _, s in self.lens], dtype=torch.int32).numpy(),
            block_table=self.block_table.numpy(),
            block_size=self.block_size,
        )

    @property
    def query(self) -> Tensor:
        """The flat batch of queries."""
        return torch.cat(self.queries)

    def blank_outside_window(self, window: int) -> None:
        """Poison what no query can see, and send its table entries to the null block."""
        for req, (num_queries, num_keys) in enumerate(self.lens):
            first = max(0, num_keys - num_queries - window + 1)
            for block in range(first // self.block_size):
                self.kv_cache[self.block_table[req, block]] = torch.nan
                self.block_table[req, block] = 0

    def expected(
        self,
        *,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The flat batch of results, by `dense_attention`."""
        parts = [
            dense_attention(
                *each, scale=scale, causal=causal, window=window, soft_cap=soft_cap, sinks=sinks
            )
            for each in zip(self.queries, self.keys, self.values, strict=True)
        ]
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])
