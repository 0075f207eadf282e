# SPDX-License-Identifier: Apache-2.0
"""TORCH_REF: attention by its PyTorch definition, on any device, with every feature.

Cache layout: [num_blocks, block_size, num_kv_heads, head_size + head_size_v]; a token's key and
value lie side by side, so that reading a context is one gather of whole rows.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.ops.paged_attention import AttentionRule, attend_tiles
from vllm.v1.attention.ops.reshape_and_cache import reshape_and_cache
from vllm.v1.attention.ops.tiles import PagedBatch, TilePlan, plan_tiles


class TorchRefMetadata(AttentionMetadata):
    """The step's batch, and one plan per window that the group's layers have.

    Attributes:
        slot_mapping: [num_actual_tokens], int64.
        causal: no query sees a later position.
    """

    def __init__(self, batch: PagedBatch, slot_mapping: Tensor, *, causal: bool) -> None:
        self.slot_mapping = slot_mapping
        self.causal = causal
        self._batch = batch
        self._plans: dict[int | None, TilePlan] = {}

    def plan(self, sliding_window: int | None) -> TilePlan:
        """Tiles for layers with this window; made by the first layer that asks."""
        plan = self._plans.get(sliding_window)
        if plan is None:
            plan = self._plans[sliding_window] = plan_tiles(
                self._batch,
                causal=self.causal,
                sliding_window=sliding_window,
                device=self.slot_mapping.device,
            )
        return plan


class TorchRefMetadataBuilder(AttentionMetadataBuilder[TorchRefMetadata]):
    """Needs nothing but the common metadata."""

    def build(self, common_attn_metadata: CommonAttentionMetadata) -> TorchRefMetadata:
        """Metadata for all layers of the group."""
        common = common_attn_metadata
        batch = PagedBatch(
            query_start_loc=common.query_start_loc_cpu.numpy(),
            seq_lens=common.seq_lens_cpu.numpy(),
            block_table=common.block_table_cpu.numpy(),
            block_size=self.kv_cache_spec.block_size,
        )
        return TorchRefMetadata(batch, common.slot_mapping, causal=common.causal)


class TorchRefImpl(AttentionImpl[TorchRefMetadata]):
    """One layer on the definition."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        *,
        num_kv_heads: int,
        sliding_window: int | None = None,
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        sinks: Tensor | None = None,
    ) -> None:
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_size = head_size
        self.scale = scale
        self.sliding_window = sliding_window
        self.logits_soft_cap = logits_soft_cap
        self.attn_type = attn_type
        self.sinks = sinks
        self._rules = {causal: self._rule(causal) for causal in (True, False)}

    def forward(
        self,
        layer: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        kv_cache: Tensor,
        attn_metadata: TorchRefMetadata,
        output: Tensor,
    ) -> Tensor:
        """Store keys and values, then attend."""
        reshape_and_cache(key, value, kv_cache, attn_metadata.slot_mapping)
        attend_tiles(
            query,
            kv_cache,
            attn_metadata.plan(self.sliding_window),
            self._rules[attn_metadata.causal],
            output=output,
            sinks=self.sinks,
        )
        return output

    def _rule(self, causal: bool) -> AttentionRule:
        return AttentionRule(
            scale=self.scale,
            causal=causal,
            sliding_window=self.sliding_window,
            logits_soft_cap=self.logits_soft_cap,
        )


class TorchRefBackend(AttentionBackend):
    """No limits: any head sizes, block size, window, cap, sinks and causality."""

    supported_dtypes: ClassVar[tuple[torch.dtype, ...]] = (
        torch.float32,
        torch.float16,
        torch.bfloat16,
    )

    @staticmethod
    def get_name() -> str:
        """Upper-case name, as users write it."""
        return "TORCH_REF"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        """Class of the layers' implementation."""
        return TorchRefImpl

    @staticmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder[Any]]:
        """Class of the metadata builder."""
        return TorchRefMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, *, head_size: int, head_size_v: int
    ) -> tuple[int, ...]:
        """Block, token in the block, head, key then value."""
        return (num_blocks, block_size, num_kv_heads, head_size + head_size_v)

    @classmethod
    def supports_head_size_v(cls, head_size: int, head_size_v: int) -> bool:
        """Any width."""
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_logits_soft_cap(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Yes."""
        return True

    @classmethod
    def supports_device(cls, device_type: str) -> bool:
        """Any."""
        return True
