# SPDX-License-Identifier: Apache-2.0
"""One group's blocks: which blocks each request holds in it, by position.

A manager knows what its kind of layer still sees, hence which blocks to keep and which cached
blocks a hit needs. The pool knows the blocks, the coordinator the other groups.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from vllm.v1.core.block_pool import BlockPool, KVCacheBlock
from vllm.v1.core.kv_cache_config import cdiv, max_blocks_per_request
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    SlidingWindowSpec,
    first_visible_position,
)


class SingleTypeKVCacheManager(ABC):
    """Block tables of one group.

    Args:
        kv_cache_spec: what the group's layers keep.
        block_pool: where blocks come from.
        kv_cache_group_id: the group's place in the cache's configuration.
        hash_block_size: tokens that each of a request's hashes adds; divides the block size.
        max_in_flight_tokens: most tokens a request gets in one step.
    """

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        *,
        kv_cache_group_id: int,
        hash_block_size: int,
        max_in_flight_tokens: int,
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.block_size = kv_cache_spec.block_size
        self.block_pool = block_pool
        self.kv_cache_group_id = kv_cache_group_id
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self._hashes_per_block = self.block_size // hash_block_size
        self._max_in_flight_tokens = max_in_flight_tokens
        self.num_cached_blocks: dict[str, int] = {}

    def get_blocks(self, request_id: str) -> list[KVCacheBlock]:
        """The request's blocks in order of position; the caller must not change the list."""
        return self.req_to_blocks.get(request_id, [])

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, computed_blocks: Sequence[KVCacheBlock]
    ) -> int:
        """Free blocks it takes to let the request hold `num_tokens` tokens.

        A hit on a free block takes that one from the free queue as well.
        """
        held = len(self.get_blocks(request_id)) + len(computed_blocks)
        return max(0, cdiv(num_tokens, self.block_size) - held) + _num_free(computed_blocks)

    def has_room(self, request_id: str, num_tokens: int) -> bool:
        """Whether the blocks that the request holds here take `num_tokens` tokens."""
        return len(self.get_blocks(request_id)) * self.block_size >= num_tokens

    def get_max_blocks(self, num_tokens: int) -> int:
        """Most blocks a request that grows to `num_tokens` ever holds here."""
        return max_blocks_per_request(self.kv_cache_spec, num_tokens, self._max_in_flight_tokens)

    def add_computed_blocks(self, request_id: str, blocks: Sequence[KVCacheBlock]) -> None:
        """Start the request's table with a prefix hit."""
        assert request_id not in self.req_to_blocks, f"{request_id} has blocks already"
        self.block_pool.touch(blocks)
        self.req_to_blocks[request_id] = list(blocks)
        self.num_cached_blocks[request_id] = len(blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Append the blocks that `num_tokens` tokens still lack; returns those."""
        table = self.req_to_blocks.setdefault(request_id, [])
        missing = cdiv(num_tokens, self.block_size) - len(table)
        blocks = self.block_pool.get_new_blocks(max(0, missing))
        table.extend(blocks)
        return blocks

    def cache_blocks(
        self, request_id: str, block_hashes: Sequence[BlockHash], num_computed_tokens: int
    ) -> None:
        """Make the blocks findable that `num_computed_tokens` computed tokens fill."""
        start = self.num_cached_blocks.get(request_id, 0)
        end = num_computed_tokens // self.block_size
        if end <= start:
            return
        hashes = [self.hash_of_block(block_hashes, i) for i in range(start, end)]
        blocks = self.get_blocks(request_id)[start:end]
        self.block_pool.cache_full_blocks(blocks, hashes, self.kv_cache_group_id)
        self.num_cached_blocks[request_id] = end

    def hash_of_block(self, block_hashes: Sequence[BlockHash], index: int) -> BlockHash:
        """Hash of the group's block `index`: that of the last piece in it, being a chain."""
        return block_hashes[(index + 1) * self._hashes_per_block - 1]

    def free(self, request_id: str) -> None:
        """Drop the request's blocks; the end of a sequence is reused before its beginning."""
        self.block_pool.free_blocks(reversed(self.req_to_blocks.pop(request_id, [])))
        self.num_cached_blocks.pop(request_id, None)

    def evict(self, request_id: str) -> None:
        """Make everything the request holds here unfindable."""
        self.block_pool.evict_blocks(self.get_blocks(request_id))

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back blocks that no later token sees; null blocks take their places."""
        num_skipped = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        if not num_skipped:
            return
        table = self.get_blocks(request_id)
        skipped: list[KVCacheBlock] = []
        # Backwards until the first null: what is before it went earlier.
        for i in range(min(num_skipped, len(table)) - 1, -1, -1):
            if table[i].is_null:
                break
            skipped.append(table[i])
            table[i] = self.block_pool.null_block
        self.block_pool.free_blocks(skipped)

    def cached_block(self, block_hashes: Sequence[BlockHash], index: int) -> KVCacheBlock | None:
        """The cached block with the request's prefix up to the end of block `index`."""
        block_hash = self.hash_of_block(block_hashes, index)
        found = self.block_pool.get_cached_block(block_hash, (self.kv_cache_group_id,))
        return found[0] if found else None

    @abstractmethod
    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Leading tokens that the token at position `num_computed_tokens` does not see."""

    @abstractmethod
    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int, alignment_tokens: int
    ) -> tuple[list[KVCacheBlock], int]:
        """Longest prefix whose visible part is cached.

        Args:
            block_hashes: the request's chain.
            max_length: longest prefix to look for, in tokens.
            alignment_tokens: the length is a multiple of it; itself one of the block size.

        Returns:
            Blocks by position, null where nobody looks; and the length in tokens.
        """


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every earlier token stays visible: all blocks are kept, a hit needs all."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """None."""
        return 0

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int, alignment_tokens: int
    ) -> tuple[list[KVCacheBlock], int]:
        """Blocks from the first up to the first that is missing."""
        blocks: list[KVCacheBlock] = []
        for i in range(max_length // self.block_size):
            block = self.cached_block(block_hashes, i)
            if block is None:
                break
            blocks.append(block)
        length = len(blocks) * self.block_size // alignment_tokens * alignment_tokens
        return blocks[: length // self.block_size], length


class SlidingWindowManager(SingleTypeKVCacheManager):
    """Only the window before the next token is visible: the rest is given back, a hit needs no
    more than that."""

    def __init__(
        self,
        kv_cache_spec: SlidingWindowSpec,
        block_pool: BlockPool,
        *,
        kv_cache_group_id: int,
        hash_block_size: int,
        max_in_flight_tokens: int,
    ) -> None:
        super().__init__(
            kv_cache_spec,
            block_pool,
            kv_cache_group_id=kv_cache_group_id,
            hash_block_size=hash_block_size,
            max_in_flight_tokens=max_in_flight_tokens,
        )
        self.sliding_window = kv_cache_spec.sliding_window

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Tokens before the window of the next one."""
        return first_visible_position(num_computed_tokens, self.sliding_window)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_length: int, alignment_tokens: int
    ) -> tuple[list[KVCacheBlock], int]:
        """Search from the end for a run of cached blocks that covers the window before it."""
        length = max_length // alignment_tokens * alignment_tokens
        while length > 0:
            first = self.get_num_skipped_tokens(length) // self.block_size
            run, missing = self._run_back_to(block_hashes, first, length // self.block_size)
            if missing is None:
                return [self.block_pool.null_block] * first + run, length
            # A hit that ends after the missing block would need it too: end before it.
            length = missing * self.block_size // alignment_tokens * alignment_tokens
        return [], 0

    def _run_back_to(
        self, block_hashes: Sequence[BlockHash], first: int, end: int
    ) -> tuple[list[KVCacheBlock], int | None]:
        """Cached blocks `first` to `end - 1`; or the index of the last one that is missing."""
        run: list[KVCacheBlock] = []
        for i in range(end - 1, first - 1, -1):
            block = self.cached_block(block_hashes, i)
            if block is None:
                return [], i
            run.append(block)
        return run[::-1], None


def get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec,
    block_pool: BlockPool,
    *,
    kv_cache_group_id: int,
    hash_block_size: int,
    max_in_flight_tokens: int,
) -> SingleTypeKVCacheManager:
    """The manager for this kind of layer.

    Raises:
        TypeError: no manager knows the spec.
    """
    if isinstance(kv_cache_spec, SlidingWindowSpec):
        return SlidingWindowManager(
            kv_cache_spec,
            block_pool,
            kv_cache_group_id=kv_cache_group_id,
            hash_block_size=hash_block_size,
            max_in_flight_tokens=max_in_flight_tokens,
        )
    if isinstance(kv_cache_spec, FullAttentionSpec):
        return FullAttentionManager(
            kv_cache_spec,
            block_pool,
            kv_cache_group_id=kv_cache_group_id,
            hash_block_size=hash_block_size,
            max_in_flight_tokens=max_in_flight_tokens,
        )
    raise TypeError(f"no KV cache manager for {type(kv_cache_spec).__name__}")


def _num_free(blocks: Iterable[KVCacheBlock]) -> int:
    return sum(1 for block in blocks if block.ref_cnt == 0 and not block.is_null)
