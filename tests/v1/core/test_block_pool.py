# SPDX-License-Identifier: Apache-2.0
"""The pool's queue, index, reference counts and reservation."""

from typing import Any

import pytest

from vllm.exceptions import ConfigError
from vllm.v1.core.block_pool import BlockPool, FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.kv_cache_utils import BlockHash


def ids(blocks: Any) -> list[int]:
    return [block.block_id for block in blocks]


def digest(n: int) -> BlockHash:
    return BlockHash(bytes([n]) * 32)


def cached_pool(num_blocks: int = 5) -> tuple[BlockPool, list[KVCacheBlock]]:
    """A pool whose first two usable blocks are held and cached as 1 and 2."""
    pool = BlockPool(num_blocks)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [digest(1), digest(2)], 0)
    return pool, blocks


def test_queue_keeps_order_through_every_operation() -> None:
    blocks = [KVCacheBlock(i) for i in range(6)]
    queue = FreeKVCacheBlockQueue(blocks[:4])
    queue.remove(blocks[1])
    queue.prepend_n([blocks[4], blocks[5]])
    queue.append(blocks[1])
    assert ids(queue) == [4, 5, 0, 2, 3, 1]
    assert ids(queue.popleft_n(2)) == [4, 5]
    assert queue.popleft() is blocks[0]
    queue.append_n([blocks[5], blocks[4]])
    assert ids(queue) == [2, 3, 1, 5, 4]
    assert queue.num_free_blocks == 5


def test_queue_refuses_a_block_twice_and_an_absent_one() -> None:
    blocks = [KVCacheBlock(i) for i in range(2)]
    queue = FreeKVCacheBlockQueue(blocks[:1])
    with pytest.raises(AssertionError, match="free already"):
        queue.append(blocks[0])
    with pytest.raises(AssertionError, match="not in the free queue"):
        queue.remove(blocks[1])
    queue.popleft()
    with pytest.raises(AssertionError, match="no free block"):
        queue.popleft()


def test_null_block_is_never_handed_out_or_counted() -> None:
    pool = BlockPool(4)
    assert 0 not in ids(pool.get_new_blocks(3))
    assert pool.get_num_free_blocks() == 0
    pool.touch([pool.null_block])
    pool.free_blocks([pool.null_block])
    assert pool.null_block.ref_cnt == 0 and pool.get_usage() == 1.0
    pool.check_integrity({1: 1, 2: 1, 3: 1})


def test_freed_blocks_go_uncached_first_then_oldest_cached() -> None:
    pool, cached = cached_pool()
    plain = pool.get_new_blocks(1)
    pool.free_blocks([cached[1], cached[0]])
    pool.free_blocks(plain)
    assert ids(pool.get_new_blocks(4)) == [3, 4, 2, 1]


def test_cached_block_is_found_while_free_and_forgotten_when_handed_out() -> None:
    pool, blocks = cached_pool(3)
    pool.free_blocks(reversed(blocks))
    assert pool.get_cached_block(digest(1), [0]) == [blocks[0]]
    assert pool.get_new_blocks(1) == [blocks[1]]
    assert pool.get_cached_block(digest(2), [0]) is None
    assert pool.get_cached_block(digest(1), [0]) == [blocks[0]]
    pool.check_integrity({2: 1})


def test_a_touched_block_is_not_handed_out() -> None:
    pool, blocks = cached_pool(3)
    pool.free_blocks(blocks)
    pool.touch([blocks[0]])
    assert pool.get_num_free_blocks() == 1
    assert pool.get_new_blocks(1) == [blocks[1]]
    pool.touch([blocks[0]])
    pool.free_blocks([blocks[0]])
    assert blocks[0].ref_cnt == 1
    pool.check_integrity({1: 1, 2: 1})


def test_a_hit_needs_every_group() -> None:
    pool = BlockPool(5)
    first, second = pool.get_new_blocks(2)
    pool.cache_full_blocks([first], [digest(1)], 0)
    assert pool.get_cached_block(digest(1), [0, 1]) is None
    pool.cache_full_blocks([second], [digest(1)], 1)
    assert pool.get_cached_block(digest(1), [0, 1]) == [first, second]


def test_equal_content_twice_is_found_until_both_are_gone() -> None:
    pool = BlockPool(3)
    one, two = pool.get_new_blocks(2)
    pool.cache_full_blocks([one], [digest(1)], 0)
    pool.cache_full_blocks([two], [digest(1)], 0)
    pool.evict_blocks([one])
    assert pool.get_cached_block(digest(1), [0]) == [two]
    pool.evict_blocks([two])
    assert pool.get_cached_block(digest(1), [0]) is None
    pool.check_integrity({1: 1, 2: 1})


def test_of_equal_blocks_only_one_stays_cached_when_they_are_free() -> None:
    pool = BlockPool(6)
    one, two, three, rest = pool.get_new_blocks(4)
    for block in (one, two, three):
        pool.cache_full_blocks([block], [digest(1)], 0)
    pool.cache_full_blocks([rest], [digest(2)], 0)
    pool.free_blocks([one])
    assert one.key is None and pool.get_cached_block(digest(1), [0]) == [two]
    pool.free_blocks([two])
    pool.free_blocks([rest])
    # The last one to be freed is a copy of none, and the copies are handed out first.
    pool.free_blocks([three])
    assert pool.get_cached_block(digest(1), [0]) == [three]
    assert ids(pool.get_new_blocks(5)) == [*ids([two, one]), 5, *ids([rest, three])]


def test_a_copy_that_is_freed_makes_the_one_that_stays_the_latest() -> None:
    pool, blocks = cached_pool()
    pool.free_blocks([blocks[0]])
    pool.free_blocks([blocks[1]])
    (copy,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([copy], [digest(1)], 0)
    pool.free_blocks([copy])
    assert pool.get_cached_block(digest(1), [0]) == [blocks[0]]
    assert ids(pool.get_new_blocks(4)) == [3, 4, 2, 1]
    pool.check_integrity({1: 1, 2: 1, 3: 1, 4: 1})


def test_without_caching_nothing_is_found() -> None:
    pool = BlockPool(3, enable_caching=False)
    pool.cache_full_blocks(pool.get_new_blocks(1), [digest(1)], 0)
    assert pool.get_cached_block(digest(1), [0]) is None


def test_reset_is_refused_while_a_block_is_held() -> None:
    pool, blocks = cached_pool()
    assert not pool.reset_prefix_cache()
    assert pool.get_cached_block(digest(1), [0])
    pool.free_blocks(blocks)
    assert pool.reset_prefix_cache()
    assert pool.get_cached_block(digest(1), [0]) is None
    pool.check_integrity({})


def test_reserved_blocks_are_outside_usage_capacity_eviction_and_reset() -> None:
    pool = BlockPool(6)
    reserved = pool.reserve_blocks(2)
    assert pool.num_usable_blocks == 3 and pool.num_reserved_blocks == 2
    assert pool.get_usage() == 0.0
    held = pool.get_new_blocks(3)
    assert not set(ids(held)) & set(ids(reserved))
    assert pool.get_usage() == 1.0
    pool.check_integrity(dict.fromkeys(ids(held), 1))
    pool.free_blocks(held)
    assert pool.reset_prefix_cache()
    assert all(block.is_reserved for block in reserved)
    pool.check_integrity({})
    with pytest.raises(AssertionError, match="belongs to no request"):
        pool.touch(reserved)
    with pytest.raises(ConfigError, match="4 blocks to reserve, 3 of 6"):
        pool.reserve_blocks(4)


def test_reserving_a_cached_block_forgets_its_content() -> None:
    pool, blocks = cached_pool(3)
    pool.free_blocks(blocks)
    pool.reserve_blocks(2)
    assert pool.get_cached_block(digest(1), [0]) is None
    pool.check_integrity({})


def test_usage_of_a_pool_without_usable_blocks_is_zero() -> None:
    pool = BlockPool(1)
    assert pool.get_usage() == 0.0
    with pytest.raises(ConfigError, match="at least 1"):
        BlockPool(0)


def test_freeing_twice_is_a_bug() -> None:
    pool, blocks = cached_pool()
    pool.free_blocks(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free_blocks(blocks)


@pytest.mark.parametrize("damage", ["leak", "count", "index", "key", "queue", "reserved"])
def test_integrity_check_sees(damage: str) -> None:
    pool, blocks = cached_pool()
    holders = {1: 1, 2: 1}
    pool.check_integrity(holders)
    if damage == "leak":
        holders.pop(1)
    elif damage == "count":
        blocks[0].ref_cnt = 2
    elif damage == "index":
        pool._cached.clear()
    elif damage == "key":
        blocks[0].key = None
    elif damage == "queue":
        pool._free.append(blocks[0])
    else:
        blocks[0].is_reserved = True
    with pytest.raises(AssertionError):
        pool.check_integrity(holders)
