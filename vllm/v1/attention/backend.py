# SPDX-License-Identifier: Apache-2.0
"""What an attention backend is: declared limits, an implementation, a metadata builder.

Limits are classmethods, so that the selector can judge a backend without building anything.
A backend that does not override a limit does not have the feature.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from vllm.v1.kv_cache_interface import KVCacheSpec


class AttentionType:
    """Roles of attention in a model."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSelectorConfig:
    """What one layer asks of its backend.

    Attributes:
        head_size: width of a query and a key.
        head_size_v: width of a value.
        dtype: of queries, keys and values.
        kv_cache_dtype: "auto" is `dtype`.
        block_size: tokens per cache block.
        has_sink: the layer has attention sinks.
        has_sliding_window: the layer sees a window only.
        has_logits_soft_cap: scores are soft-capped.
        use_non_causal: queries see later positions.
        attn_type: a value of `AttentionType`.
    """

    head_size: int
    head_size_v: int
    dtype: torch.dtype
    block_size: int
    kv_cache_dtype: str = "auto"
    has_sink: bool = False
    has_sliding_window: bool = False
    has_logits_soft_cap: bool = False
    use_non_causal: bool = False
    attn_type: str = AttentionType.DECODER


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonAttentionMetadata:
    """One step's flat batch, the same for every backend; one record per KV cache group.

    Attributes:
        query_start_loc: [num_reqs + 1], int32, first row of each request.
        query_start_loc_cpu: the same in host memory.
        seq_lens: [num_reqs], int32, cached tokens including this step's.
        seq_lens_cpu: the same in host memory.
        num_reqs: requests.
        num_actual_tokens: rows that are tokens; rows after them pad.
        max_query_len: most rows of one request.
        max_seq_len: longest sequence.
        block_table_tensor: [num_reqs, max_blocks], int32.
        block_table_cpu: the same in host memory.
        slot_mapping: [num_actual_tokens], int64, where each row's key and value go; -1: nowhere.
        causal: no query sees a later position.
    """

    query_start_loc: Tensor
    query_start_loc_cpu: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Tensor
    block_table_cpu: Tensor
    slot_mapping: Tensor
    causal: bool = True


class AttentionMetadata:
    """Base of what a backend's builder makes of `CommonAttentionMetadata`."""


M = TypeVar("M", bound=AttentionMetadata)


class AttentionMetadataBuilder(ABC, Generic[M]):
    """Turns the step's batch into a backend's own metadata, once per KV cache group and step."""

    def __init__(
        self, kv_cache_spec: KVCacheSpec, layer_names: Sequence[str], device: torch.device
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = tuple(layer_names)
        self.device = device

    @abstractmethod
    def build(self, common_attn_metadata: CommonAttentionMetadata) -> M:
        """Metadata for all layers of the group."""


class AttentionImpl(ABC, Generic[M]):
    """The computation of one layer."""

    @abstractmethod
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
    ) -> None: ...

    @abstractmethod
    def forward(
        self,
        layer: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        kv_cache: Tensor,
        attn_metadata: M,
        output: Tensor,
    ) -> Tensor:
        """Store keys and values, then attend.

        Args:
            query: [num_tokens, num_heads, head_size].
            key: [num_tokens, num_kv_heads, head_size].
            value: [num_tokens, num_kv_heads, head_size_v].
            layer: the attention layer; for state that backends keep on it.
            kv_cache: the layer's cache, in the backend's shape.
            output: [num_tokens, num_heads, head_size_v], written and returned.
        """

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Refresh, in place, whatever is derived from parameters; most keep nothing."""


class AttentionBackend(ABC):
    """Declared limits of one way to compute attention."""

    supported_dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float16, torch.bfloat16)
    supported_kv_cache_dtypes: ClassVar[tuple[str, ...]] = ("auto",)

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """Upper-case name, as users write it."""

    @staticmethod
    @abstractmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        """Class of the layers' implementation."""

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder[Any]]:
        """Class of the metadata builder."""

    @staticmethod
    @abstractmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, *, head_size: int, head_size_v: int
    ) -> tuple[int, ...]:
        """Shape of one layer's cache; block id comes first, so that groups can share pages."""

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Head sizes with a kernel; empty means any."""
        return []

    @classmethod
    def get_supported_kernel_block_sizes(cls) -> list[int]:
        """Block sizes whose multiples the kernel takes."""
        return [1]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Whether queries and keys may be this wide."""
        sizes = cls.get_supported_head_sizes()
        return not sizes or head_size in sizes

    @classmethod
    def supports_head_size_v(cls, head_size: int, head_size_v: int) -> bool:
        """Whether values may be this wide."""
        return head_size == head_size_v

    @classmethod
    def supports_dtype(cls, dtype: torch.dtype) -> bool:
        """Whether queries may be of this dtype."""
        return dtype in cls.supported_dtypes

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str) -> bool:
        """Whether the cache may be held so."""
        return kv_cache_dtype in cls.supported_kv_cache_dtypes

    @classmethod
    def supports_block_size(cls, block_size: int) -> bool:
        """Whether the cache may have blocks of this many tokens."""
        return any(block_size % size == 0 for size in cls.get_supported_kernel_block_sizes())

    @classmethod
    def supports_sink(cls) -> bool:
        """Whether attention sinks are applied."""
        return False

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Whether windows are applied."""
        return False

    @classmethod
    def supports_logits_soft_cap(cls) -> bool:
        """Whether scores can be soft-capped."""
        return False

    @classmethod
    def supports_non_causal(cls) -> bool:
        """Whether queries can see later positions."""
        return False

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        """Which roles the backend can play."""
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_device(cls, device_type: str) -> bool:
        """Whether tensors may live on this kind of device."""
        return device_type == "cuda"

    @classmethod
    def validate_configuration(
        cls, config: AttentionSelectorConfig, *, device_type: str
    ) -> list[str]:
        """Reasons why this backend cannot serve such a layer; empty when it can."""
        sizes, blocks = cls.get_supported_head_sizes(), cls.get_supported_kernel_block_sizes()
        widths = f"{config.head_size_v} with head_size {config.head_size}"
        checks = (
            (cls.supports_device(device_type), f"device {device_type}"),
            (
                cls.supports_head_size(config.head_size),
                f"head_size {config.head_size} (of {sizes})",
            ),
            (
                cls.supports_head_size_v(config.head_size, config.head_size_v),
                f"head_size_v {widths}",
            ),
            (cls.supports_dtype(config.dtype), f"dtype {config.dtype}"),
            (
                cls.supports_kv_cache_dtype(config.kv_cache_dtype),
                f"kv_cache_dtype {config.kv_cache_dtype} (of {cls.supported_kv_cache_dtypes})",
            ),
            (
                cls.supports_block_size(config.block_size),
                f"block_size {config.block_size} (multiples of {blocks})",
            ),
            (cls.supports_sink() or not config.has_sink, "attention sinks"),
            (cls.supports_sliding_window() or not config.has_sliding_window, "sliding windows"),
            (cls.supports_logits_soft_cap() or not config.has_logits_soft_cap, "logits soft cap"),
            (cls.supports_non_causal() or not config.use_non_causal, "non-causal attention"),
            (cls.supports_attn_type(config.attn_type), f"attention type {config.attn_type}"),
        )
        return [f"no support for {what}" for holds, what in checks if not holds]
