# SPDX-License-Identifier: Apache-2.0
"""What each attention layer keeps in the KV cache, and how layers share the pool.

Plain records without torch: the scheduler's side reads them too. All sizes are bytes.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_Position = TypeVar("_Position", bound=Any)  # an int, or an array or tensor of ints


def window_start(position: _Position, sliding_window: int) -> _Position:
    """First position that a query at `position` sees; below 0 where the window is not full.

    The one statement of what a window means: masks, kernels, block freeing and prefix hits all
    ask here.
    """
    return cast(_Position, position - sliding_window + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """What one layer keeps.

    Attributes:
        block_size: tokens per block.
        num_kv_heads: key/value heads on this rank.
        head_size: width of a key.
        head_size_v: width of a value.
        dtype: name of the element type, a key of `DTYPE_BYTES`.
    """

    block_size: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    dtype: str

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer, keys and values."""
        width = self.num_kv_heads * (self.head_size + self.head_size_v)
        return self.block_size * width * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    """Every earlier token stays visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindowSpec(KVCacheSpec):
    """A query at position p sees keys p - sliding_window + 1 .. p.

    Attributes:
        sliding_window: visible keys, the query's own included; at least 1.
    """

    sliding_window: int


def first_visible_position(position: int, sliding_window: int) -> int:
    """First key position that a query at `position` sees: the window's one convention."""
    return max(0, window_start(position, sliding_window))


@dataclass(frozen=True, slots=True)
class KVCacheTensor:
    """One allocation: `num_blocks` pages, shared by one layer of each group.

    Attributes:
        size: bytes.
        shared_by: names of the layers that view it, at most one per group.
    """

    size: int
    shared_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KVCacheGroupSpec:
    """Layers with one block table: the same blocks serve all of them."""

    layer_names: tuple[str, ...]
    kv_cache_spec: KVCacheSpec


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The whole cache.

    Attributes:
        num_blocks: blocks of the pool, the null block included.
        kv_cache_tensors: allocations.
        kv_cache_groups: groups; the order fixes the group id.
    """

    num_blocks: int
    kv_cache_tensors: tuple[KVCacheTensor, ...] = field(default_factory=tuple)
    kv_cache_groups: tuple[KVCacheGroupSpec, ...] = field(default_factory=tuple)
