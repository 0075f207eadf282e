# SPDX-License-Identifier: Apache-2.0
"""All groups of the KV cache as one: a request has blocks in every group, or in none.

Owns the pool and one manager per group. Knows no scheduling.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from vllm.v1.core.block_pool import BlockPool, KVCacheBlock, make_block_key
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.core.single_type_kv_cache_manager import get_manager_for_kv_cache_spec
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

GroupBlocks = tuple[Sequence[KVCacheBlock], ...]
"""Blocks by position, per group."""


class KVCacheCoordinator:
    """Block tables of all groups over one pool.

    One class for any number of groups: with a single group the search for a common hit ends
    after its first round.

    Args:
        kv_cache_config: the cache; at least one group.
        max_in_flight_tokens: most tokens a request gets in one step.
        enable_caching: keep freed blocks findable.

    Attributes:
        no_blocks: an empty table in each group.
    """

    def __init__(
        self, kv_cache_config: KVCacheConfig, max_in_flight_tokens: int, *, enable_caching: bool
    ) -> None:
        block_sizes = [g.kv_cache_spec.block_size for g in kv_cache_config.kv_cache_groups]
        assert block_sizes, "a KV cache without groups"
        self.hash_block_size = math.gcd(*block_sizes)
        self.alignment_tokens = math.lcm(*block_sizes)
        self.enable_caching = enable_caching
        self.block_pool = BlockPool(kv_cache_config.num_blocks, enable_caching)
        self.managers = tuple(
            get_manager_for_kv_cache_spec(
                group.kv_cache_spec,
                self.block_pool,
                kv_cache_group_id=group_id,
                hash_block_size=self.hash_block_size,
                max_in_flight_tokens=max_in_flight_tokens,
            )
            for group_id, group in enumerate(kv_cache_config.kv_cache_groups)
        )
        self.no_blocks: GroupBlocks = tuple(() for _ in self.managers)

    def get_blocks(self, request_id: str) -> GroupBlocks:
        """The request's blocks."""
        return tuple(manager.get_blocks(request_id) for manager in self.managers)

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, computed_blocks: GroupBlocks
    ) -> int:
        """Free blocks it takes to let the request hold `num_tokens` tokens."""
        return sum(
            manager.get_num_blocks_to_allocate(request_id, num_tokens, blocks)
            for manager, blocks in zip(self.managers, computed_blocks, strict=True)
        )

    def has_room(self, request_id: str, num_tokens: int) -> bool:
        """Whether the blocks that the request holds take `num_tokens` tokens."""
        return all(manager.has_room(request_id, num_tokens) for manager in self.managers)

    def get_max_blocks(self, num_tokens: int) -> int:
        """Most blocks a request that grows to `num_tokens` ever holds."""
        return sum(manager.get_max_blocks(num_tokens) for manager in self.managers)

    def add_computed_blocks(self, request_id: str, computed_blocks: GroupBlocks) -> None:
        """Start the request's tables with a prefix hit."""
        for manager, blocks in zip(self.managers, computed_blocks, strict=True):
            manager.add_computed_blocks(request_id, blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> GroupBlocks:
        """Append the blocks that `num_tokens` tokens still lack; returns those."""
        return tuple(m.allocate_new_blocks(request_id, num_tokens) for m in self.managers)

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back blocks that no later token sees."""
        for manager in self.managers:
            manager.remove_skipped_blocks(request_id, num_computed_tokens)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Make the blocks findable that the computed tokens fill."""
        if not self.enable_caching:
            return
        for manager in self.managers:
            manager.cache_blocks(request.request_id, request.block_hashes, num_computed_tokens)

    def free(self, request_id: str) -> None:
        """Drop the request's blocks."""
        for manager in self.managers:
            manager.free(request_id)

    def evict(self, request_id: str) -> None:
        """Make everything the request holds unfindable."""
        for manager in self.managers:
            manager.evict(request_id)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[GroupBlocks, int]:
        """Longest prefix that every group has what it needs of.

        Each group may shorten the candidate, and a windowed group that agreed to the longer one
        may lack blocks of the shorter: so ask again until all agree. Lengths only fall, hence
        this ends; at 0 all agree.

        Returns:
            Blocks per group, and the length in tokens.
        """
        align = self.alignment_tokens
        length = max_cache_hit_length // align * align
        while length > 0:
            agreed, hits = length, []
            for manager in self.managers:
                blocks, agreed = manager.find_longest_cache_hit(block_hashes, agreed, align)
                hits.append(blocks)
            if agreed == length:
                return tuple(hits), length
            length = agreed
        return self.no_blocks, 0

    def check_integrity(
        self, requests: Sequence[Request], chain: Callable[[Request], list[BlockHash]]
    ) -> None:
        """Compare the pool with the tables, and the tables with what the requests hold.

        Raises:
            AssertionError: naming what differs.
        """
        holders: Counter[int] = Counter()
        chains = {request.request_id: chain(request) for request in requests}
        for manager in self.managers:
            assert manager.num_cached_blocks.keys() <= manager.req_to_blocks.keys(), "stale counts"
            for request_id, blocks in manager.req_to_blocks.items():
                assert request_id in chains, f"blocks of {request_id}, which has gone"
                holders.update(block.block_id for block in blocks if not block.is_null)
                for i, block in enumerate(blocks):
                    if block.key is not None:
                        block_hash = manager.hash_of_block(chains[request_id], i)
                        key = make_block_key(block_hash, manager.kv_cache_group_id)
                        assert block.key == key, f"{request_id}: {block} at {i} has another prefix"
        self.block_pool.check_integrity(holders)
