# SPDX-License-Identifier: Apache-2.0
"""The blocks of the KV cache: which are free, who refers to them, which hold a known prefix.

Owns the reference counts, the free queue, the index of cached blocks and the reservation. Knows
no requests and no tensors: a block here is a number.

Every block is exactly one of
  null      block 0; stands for positions that nobody can see; never handed out
  reserved  set aside for the life of the engine, outside usage, capacity, eviction and reset
  used      ref_cnt > 0
  free      in the free queue; it may still hold a known prefix, until it is handed out anew
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NewType

from vllm.exceptions import ConfigError
from vllm.v1.core.kv_cache_utils import BlockHash

BlockKey = NewType("BlockKey", bytes)
"""A block hash and the id of the group whose layers filled the block."""


def make_block_key(block_hash: BlockHash, group_id: int) -> BlockKey:
    """Key of the index: equal tokens fill different blocks in different groups."""
    return BlockKey(block_hash + group_id.to_bytes(4, "little"))


class KVCacheBlock:
    """One block. The pool alone changes it."""

    __slots__ = ("block_id", "is_null", "is_reserved", "key", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.is_null = False
        self.is_reserved = False
        self.key: BlockKey | None = None
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        state = "null" if self.is_null else "reserved" if self.is_reserved else self.ref_cnt
        return f"KVCacheBlock({self.block_id}, refs={state}, cached={self.key is not None})"


class FreeKVCacheBlockQueue:
    """Free blocks, the next to be handed out first.

    A linked list through the blocks themselves and not a deque: a prefix hit takes a block from
    the middle, which must not cost a search.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self.num_free_blocks = 0
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self.append_n(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def popleft(self) -> KVCacheBlock:
        """Take the first block."""
        assert self.num_free_blocks, "no free block"
        block = self._head.next_free
        assert block is not None
        self.remove(block)
        return block

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the first `n` blocks, in order."""
        return [self.popleft() for _ in range(n)]

    def remove(self, block: KVCacheBlock) -> None:
        """Take `block` from wherever it is."""
        before, after = block.prev_free, block.next_free
        assert before is not None and after is not None, f"{block} is not in the free queue"
        before.next_free, after.prev_free = after, before
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """Put `block` last."""
        assert self._tail.prev_free is not None
        self._insert_after(self._tail.prev_free, block)

    def append_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put `blocks` last, in order."""
        for block in blocks:
            self.append(block)

    def prepend_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Put `blocks` first, in order."""
        place = self._head
        for block in blocks:
            self._insert_after(place, block)
            place = block

    def _insert_after(self, place: KVCacheBlock, block: KVCacheBlock) -> None:
        assert block.prev_free is None and block.next_free is None, f"{block} is free already"
        after = place.next_free
        assert after is not None
        place.next_free, after.prev_free = block, block
        block.prev_free, block.next_free = place, after
        self.num_free_blocks += 1


class BlockHashToBlockMap:
    """Index of the cached blocks.

    Several blocks may hold the same prefix: two requests computed it in the same step, or one
    computed the end of its prompt anew. They are not merged while requests hold them, since block
    tables that the worker knows are only ever appended to; `free_blocks` keeps one.
    """

    def __init__(self) -> None:
        self._blocks: dict[BlockKey, dict[int, KVCacheBlock]] = {}

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._blocks.values())

    def get_one_block(self, key: BlockKey) -> KVCacheBlock | None:
        """The first block cached under `key`, if any."""
        blocks = self._blocks.get(key)
        return next(iter(blocks.values())) if blocks else None

    def get_another_block(self, key: BlockKey, block_id: int) -> KVCacheBlock | None:
        """A block cached under `key` other than that one, if any."""
        blocks = self._blocks[key]
        if len(blocks) == 1:
            return None
        return next(block for block in blocks.values() if block.block_id != block_id)

    def contains(self, key: BlockKey, block_id: int) -> bool:
        """Whether that block is cached under `key`."""
        return block_id in self._blocks.get(key, {})

    def insert(self, key: BlockKey, block: KVCacheBlock) -> None:
        """Add `block` under `key`."""
        self._blocks.setdefault(key, {})[block.block_id] = block

    def pop(self, key: BlockKey, block_id: int) -> None:
        """Forget that block under `key`."""
        blocks = self._blocks[key]
        del blocks[block_id]
        if not blocks:
            del self._blocks[key]

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()


class BlockPool:
    """All blocks of the cache.

    Args:
        num_gpu_blocks: blocks in all, the null block included; at least 1.
        enable_caching: keep freed blocks findable by their content.
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        if num_gpu_blocks < 1:
            raise ConfigError(f"num_gpu_blocks={num_gpu_blocks}: pass at least 1, the null block")
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.reserved_blocks: list[KVCacheBlock] = []
        self._free = FreeKVCacheBlockQueue(self.blocks[1:])
        self._cached = BlockHashToBlockMap()

    @property
    def num_reserved_blocks(self) -> int:
        """Blocks set aside for the life of the engine."""
        return len(self.reserved_blocks)

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can have at most: all but null and reserved."""
        return self.num_gpu_blocks - 1 - self.num_reserved_blocks

    def get_num_free_blocks(self) -> int:
        """Blocks that can be handed out now."""
        return self._free.num_free_blocks

    def get_usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1."""
        usable = self.num_usable_blocks
        return 1.0 - self.get_num_free_blocks() / usable if usable else 0.0

    def reserve_blocks(self, n: int) -> list[KVCacheBlock]:
        """Set `n` blocks aside for good; the caller learns their ids from here alone.

        Raises:
            ConfigError: fewer than `n` blocks are free.
        """
        if n > self.get_num_free_blocks():
            raise ConfigError(
                f"{n} blocks to reserve, {self.get_num_free_blocks()} of {self.num_gpu_blocks} "
                "are free; give the KV cache more memory"
            )
        blocks = self._free.popleft_n(n)
        for block in blocks:
            self._forget(block)
            block.is_reserved = True
        self.reserved_blocks.extend(blocks)
        return blocks

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Hand out `n` free blocks with one reference each; what they cached is forgotten."""
        assert n <= self.get_num_free_blocks(), (
            f"{n} blocks asked, {self._free.num_free_blocks} free"
        )
        blocks = self._free.popleft_n(n)
        for block in blocks:
            assert block.ref_cnt == 0, f"{block} was free"
            self._forget(block)
            block.ref_cnt = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a reference to cached blocks; a free one leaves the queue. Null blocks: no effect."""
        for block in blocks:
            if block.is_null:
                continue
            assert not block.is_reserved, f"{block} belongs to no request"
            if block.ref_cnt == 0:
                self._free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Drop one reference each; first in `ordered_blocks` is handed out first.

        A block without known content has nothing to lose and goes before all cached ones. Nor
        has a copy of what another block holds: were copies kept, the same requests again and
        again would fill the cache with them, and touch memory that was never needed.
        """
        plain: list[KVCacheBlock] = []
        for block in ordered_blocks:
            if block.is_null:
                continue
            assert block.ref_cnt > 0, f"{block} freed twice"
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self._drop_copy(block)
                if block.key is None:
                    plain.append(block)
                else:
                    self._free.append(block)
        self._free.prepend_n(plain)

    def cache_full_blocks(
        self, blocks: Sequence[KVCacheBlock], block_hashes: Sequence[BlockHash], group_id: int
    ) -> None:
        """Make full, computed blocks findable. Null blocks and hashed ones stay as they are."""
        assert len(blocks) == len(block_hashes), "one hash a block"
        if not self.enable_caching:
            return
        for block, block_hash in zip(blocks, block_hashes, strict=True):
            if block.is_null or block.key is not None:
                continue
            block.key = make_block_key(block_hash, group_id)
            self._cached.insert(block.key, block)

    def get_cached_block(
        self, block_hash: BlockHash, kv_cache_group_ids: Iterable[int]
    ) -> list[KVCacheBlock] | None:
        """Blocks that hold this prefix, one a group; None unless every group has one."""
        found = []
        for group_id in kv_cache_group_ids:
            block = self._cached.get_one_block(make_block_key(block_hash, group_id))
            if block is None:
                return None
            found.append(block)
        return found

    def evict_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Make blocks unfindable; whoever refers to them keeps them."""
        for block in blocks:
            self._forget(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; refused (False) while a request holds blocks."""
        if self.get_num_free_blocks() != self.num_usable_blocks:
            return False
        self._cached.clear()
        for block in self.blocks:
            block.key = None
        return True

    def check_integrity(self, holders: Mapping[int, int]) -> None:
        """Compare the pool with what its users hold.

        Args:
            holders: references held, by block id.

        Raises:
            AssertionError: naming the first block that differs and how.
        """
        free = list(self._free)
        free_ids = {block.block_id for block in free}
        assert len(free) == len(free_ids) == self._free.num_free_blocks, "free queue is torn"
        num_keys = 0
        for block in self.blocks:
            states = (
                block.is_null,
                block.is_reserved,
                block.ref_cnt > 0,
                block.block_id in free_ids,
            )
            assert sum(states) == 1, f"{block}: null, reserved, used, free = {states}"
            held = holders.get(block.block_id, 0)
            assert block.ref_cnt == held, f"{block}: {held} holders"
            if block.key is not None:
                num_keys += 1
                assert not block.is_null and not block.is_reserved, f"{block} is cached"
                assert self._cached.contains(block.key, block.block_id), f"{block} not in the index"
        assert num_keys == len(self._cached), "index names blocks that hold something else"
        reserved = [block for block in self.blocks if block.is_reserved]
        assert len(reserved) == self.num_reserved_blocks, "reservation changed"

    def _drop_copy(self, block: KVCacheBlock) -> None:
        """Forget the content of `block` if another block holds it too, which counts as used now."""
        if block.key is None:
            return
        other = self._cached.get_another_block(block.key, block.block_id)
        if other is None:
            return
        self._forget(block)
        if other.ref_cnt == 0:
            self._free.remove(other)
            self._free.append(other)

    def _forget(self, block: KVCacheBlock) -> None:
        if block.key is not None:
            self._cached.pop(block.key, block.block_id)
            block.key = None
