# SPDX-License-Identifier: Apache-2.0
"""The scheduler's view of the KV cache: allocate, find, free. Owns the look-up statistics.

The scheduler gets `KVCacheBlocks`, a handle, and passes it on; what is behind it stays here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vllm.v1.core.block_pool import KVCacheBlock
from vllm.v1.core.kv_cache_coordinator import GroupBlocks, KVCacheCoordinator
from vllm.v1.core.kv_cache_utils import BlockHash, BlockHasher
from vllm.v1.engine.messages import PrefixCacheStats
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class KVCacheBlocks:
    """Some blocks of one request, per group."""

    blocks: GroupBlocks

    def get_block_ids(self) -> tuple[list[int], ...]:
        """Ids per group, in order of position; fresh lists."""
        return tuple([block.block_id for block in group] for group in self.blocks)

    def get_new_block_ids(self) -> tuple[list[int], ...] | None:
        """`get_block_ids`, or None when there is no block in any group."""
        return self.get_block_ids() if any(self.blocks) else None


class KVCacheManager:
    """Blocks of all requests.

    Args:
        kv_cache_config: the cache.
        max_in_flight_tokens: most tokens a request gets in one step.
        enable_caching: share full blocks between requests with equal prefixes.
        watermark: share of the blocks that an admission beside others leaves free.
        hash_seed: see `BlockHasher`.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_in_flight_tokens: int,
        *,
        enable_caching: bool = True,
        watermark: float = 0.0,
        hash_seed: bytes | None = None,
    ) -> None:
        self.coordinator = KVCacheCoordinator(
            kv_cache_config, max_in_flight_tokens, enable_caching=enable_caching
        )
        self.block_pool = self.coordinator.block_pool
        self.hasher = BlockHasher(self.coordinator.hash_block_size, hash_seed)
        self.enable_caching = enable_caching
        self._watermark = watermark
        self._no_blocks = KVCacheBlocks(self.coordinator.no_blocks)
        self._stats = PrefixCacheStats()

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold, 0 to 1."""
        return self.block_pool.get_usage()

    def hash_blocks(self, request: Request) -> list[BlockHash]:
        """What `Request` is built with: hashes of newly full blocks; none without caching."""
        return self.hasher(request) if self.enable_caching else []

    def reserve_blocks(self, n: int) -> list[KVCacheBlock]:
        """Set blocks aside for the life of the engine; see `BlockPool.reserve_blocks`."""
        return self.block_pool.reserve_blocks(n)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Whether a request that grows to `num_tokens` fits when it is alone."""
        return self.coordinator.get_max_blocks(num_tokens) <= self.block_pool.num_usable_blocks

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Cached blocks with the request's prefix, and how many tokens they cover.

        The last token is never covered: its output is needed, so it is computed anew. A request
        that wants prompt logprobs needs the output of every prompt token, until it has them.
        """
        params = request.sampling_params
        wants_prompt = params.prompt_logprobs is not None and request.num_output_tokens == 0
        if not self.enable_caching or wants_prompt or params.skip_reading_prefix_cache:
            return self._no_blocks, 0
        blocks, length = self.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        return KVCacheBlocks(blocks), length

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        computed: KVCacheBlocks | None = None,
        *,
        num_computed_tokens: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> KVCacheBlocks | None:
        """Make room for the request's next tokens.

            | computed: kept blocks or a prefix hit | new tokens |
              ^ before the window: given back first

        Args:
            request: the request; its `num_computed_tokens` are settled.
            num_new_tokens: tokens of this step, at least 1.
            computed: for an admission, the prefix hit.
            num_computed_tokens: for an admission, tokens the hit covers.
            full_sequence_must_fit: refuse unless all known tokens fit beside the watermark, so
                that an admission does not soon take blocks from those that run.

        Returns:
            The new blocks, or None (and nothing but blocks out of sight given back) if there
            are not enough.
        """
        assert num_new_tokens > 0, f"{request.request_id}: no token to make room for"
        request_id = request.request_id
        num_computed = num_computed_tokens if computed else request.num_computed_tokens
        self.coordinator.remove_skipped_blocks(request_id, num_computed)

        num_tokens = num_computed + num_new_tokens
        if computed is None and self.coordinator.has_room(request_id, num_tokens):
            return self._no_blocks  # nearly every step of a request that decodes
        hit = (computed or self._no_blocks).blocks
        needed = self.coordinator.get_num_blocks_to_allocate(request_id, num_tokens, hit)
        num_free = self.block_pool.get_num_free_blocks()
        if full_sequence_must_fit:
            needed = max(needed, self._num_blocks_of_full_sequence(request, hit))
            num_free -= math.ceil(self._watermark * self.block_pool.num_usable_blocks)
        if needed > num_free:
            return None
        if computed is not None:
            self.coordinator.add_computed_blocks(request_id, hit)
        return KVCacheBlocks(self.coordinator.allocate_new_blocks(request_id, num_tokens))

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Make full blocks findable. Only after the step that computed them has succeeded."""
        self.coordinator.cache_blocks(request, num_computed_tokens)

    def free(self, request: Request) -> None:
        """Drop the request's blocks; what they cached stays findable."""
        self.coordinator.free(request.request_id)

    def discard(self, request: Request) -> None:
        """Drop the request's blocks and forget their content: it cannot be trusted."""
        self.coordinator.evict(request.request_id)
        self.coordinator.free(request.request_id)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """All block ids of the request, per group."""
        return KVCacheBlocks(self.coordinator.get_blocks(request_id)).get_block_ids()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; refused (False) while a request holds blocks."""
        return self.block_pool.reset_prefix_cache()

    def record_lookup(self, num_tokens: int, num_hit_tokens: int) -> None:
        """Count the look-up of a request that was admitted for the first time."""
        self._stats.queries += num_tokens
        self._stats.hits += num_hit_tokens

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """Look-ups since the last call."""
        stats, self._stats = self._stats, PrefixCacheStats()
        return stats

    def check_integrity(self, requests: Sequence[Request]) -> None:
        """Compare pool, tables and the content of the unfinished requests.

        Raises:
            AssertionError: naming what differs.
        """
        self.coordinator.check_integrity(requests, self.hasher.chain)

    def _num_blocks_of_full_sequence(self, request: Request, hit: GroupBlocks) -> int:
        shared = sum(1 for group in hit for block in group if block.ref_cnt and not block.is_null)
        return self.coordinator.get_max_blocks(request.num_tokens) - shared
