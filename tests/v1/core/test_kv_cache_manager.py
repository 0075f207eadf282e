# SPDX-License-Identifier: Apache-2.0
"""Allocation and prefix hits over one and several groups."""

import pytest

from tests.v1.core.utils import cache_of, create_request, full_spec, window_spec
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import KVCacheSpec, first_visible_position
from vllm.v1.request import Request


def manager_of(*specs: KVCacheSpec, num_blocks: int = 40, watermark: float = 0.0) -> KVCacheManager:
    return KVCacheManager(cache_of(num_blocks, *specs), 64, watermark=watermark)


def request_of(manager: KVCacheManager, req_id: str, tokens: list[int]) -> Request:
    return Request(create_request(req_id, tokens), manager.hash_blocks)


def compute(manager: KVCacheManager, request: Request) -> None:
    """Give the request all its tokens, computed and cached."""
    blocks, num_hit = manager.get_computed_blocks(request)
    num_new = request.num_tokens - num_hit
    assert manager.allocate_slots(request, num_new, blocks, num_computed_tokens=num_hit)
    request.num_computed_tokens = request.num_tokens
    manager.cache_blocks(request, request.num_tokens)


def hit_length(manager: KVCacheManager, tokens: list[int]) -> int:
    return manager.get_computed_blocks(request_of(manager, "probe", tokens))[1]


@pytest.mark.parametrize(
    ("num_tokens", "hit"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)]
)
def test_the_last_prompt_token_is_always_computed_anew(num_tokens: int, hit: int) -> None:
    manager = manager_of(full_spec())
    tokens = list(range(num_tokens))
    compute(manager, request_of(manager, "a", tokens))
    assert hit_length(manager, tokens) == hit


def test_blocks_are_found_only_once_computed() -> None:
    manager = manager_of(full_spec())
    request = request_of(manager, "a", list(range(12)))
    assert manager.allocate_slots(request, 12)
    assert hit_length(manager, list(range(12))) == 0
    manager.cache_blocks(request, 7)
    assert hit_length(manager, list(range(12))) == 4
    manager.check_integrity([request])


def test_shared_blocks_are_counted_and_outlive_the_first_holder() -> None:
    manager = manager_of(full_spec(), num_blocks=8)
    a, b = (request_of(manager, name, list(range(9))) for name in "ab")
    compute(manager, a)
    compute(manager, b)
    ids_a, ids_b = manager.get_block_ids("a")[0], manager.get_block_ids("b")[0]
    assert ids_a[:2] == ids_b[:2] and ids_a[2] != ids_b[2]
    manager.free(a)
    manager.check_integrity([b])
    assert manager.get_block_ids("b")[0] == ids_b
    manager.free(b)
    assert manager.usage == 0.0


def test_a_hit_on_free_blocks_counts_against_the_free_ones() -> None:
    manager = manager_of(full_spec(), num_blocks=5)
    a = request_of(manager, "a", list(range(9)))
    compute(manager, a)
    manager.free(a)
    b = request_of(manager, "b", list(range(9)) + [9] * 8)
    blocks, num_hit = manager.get_computed_blocks(b)
    assert num_hit == 8
    # 2 hit blocks and 3 new ones, of 4 usable.
    assert manager.allocate_slots(b, 9, blocks, num_computed_tokens=8) is None
    assert manager.allocate_slots(b, 8, blocks, num_computed_tokens=8) is not None
    manager.check_integrity([b])


def test_a_refused_allocation_takes_nothing() -> None:
    manager = manager_of(full_spec(), window_spec(4), num_blocks=6)
    request = request_of(manager, "a", list(range(20)))
    assert manager.allocate_slots(request, 20) is None
    assert manager.usage == 0.0
    manager.check_integrity([])


def test_a_token_that_has_room_takes_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_of(full_spec(), window_spec(6))
    a = Request(create_request("a", 5), manager.hash_blocks)
    assert manager.allocate_slots(a, 5, *manager.get_computed_blocks(a)[:1]) is not None
    held = manager.get_block_ids("a")
    a.num_computed_tokens = 5
    a.append_output_token(1)
    with monkeypatch.context() as patch:
        patch.setattr(manager.block_pool, "get_new_blocks", None)
        blocks = manager.allocate_slots(a, 3)  # up to the end of the second block of 4
    assert blocks is not None and blocks.get_new_block_ids() is None
    assert manager.get_block_ids("a") == held
    blocks = manager.allocate_slots(a, 4)
    assert blocks is not None and blocks.get_new_block_ids() is not None


def test_admission_beside_others_leaves_the_watermark_and_room_for_the_whole_prompt() -> None:
    manager = manager_of(full_spec(), num_blocks=11, watermark=0.2)
    request = request_of(manager, "a", list(range(33)))
    assert manager.allocate_slots(request, 4, full_sequence_must_fit=True) is None
    assert manager.allocate_slots(request, 4) is not None
    other = request_of(manager, "b", list(range(28)))
    assert manager.allocate_slots(other, 4, full_sequence_must_fit=True) is not None


def test_the_window_ends_with_the_query() -> None:
    assert [first_visible_position(p, 3) for p in range(5)] == [0, 0, 0, 1, 2]
    assert first_visible_position(7, 1) == 7


@pytest.mark.parametrize("window", [1, 2, 4, 5, 8, 9])
def test_blocks_out_of_the_window_are_given_back_and_no_others(window: int) -> None:
    manager = manager_of(window_spec(window))
    request = request_of(manager, "a", list(range(30)))
    for num_computed in range(30):
        request.num_computed_tokens = num_computed
        assert manager.allocate_slots(request, 1)
        first = first_visible_position(num_computed, window)
        held = [i for i, block_id in enumerate(manager.get_block_ids("a")[0]) if block_id]
        assert held == list(range(first // 4, num_computed // 4 + 1))
        manager.check_integrity([request])
    manager.free(request)
    assert manager.usage == 0.0


def test_a_windowed_hit_needs_the_trailing_window_only() -> None:
    manager = manager_of(window_spec(6))
    tokens = list(range(24))
    a = request_of(manager, "a", tokens)
    compute(manager, a)
    assert manager.allocate_slots(a, 1)
    # At 24 tokens positions 19.. are visible: blocks 4 and 5 are held, the rest is free.
    pool = manager.block_pool
    taken = pool.get_new_blocks(pool.get_num_free_blocks())
    b = request_of(manager, "b", [*tokens, 24])
    blocks, num_hit = manager.get_computed_blocks(b)
    assert num_hit == 24
    assert blocks.get_block_ids()[0] == [0, 0, 0, 0, *manager.get_block_ids("a")[0][4:6]]
    # A shorter prefix needs block 3, which is gone.
    assert hit_length(manager, tokens[:21]) == 0
    pool.free_blocks(taken)


def test_a_windowed_hit_near_the_start_needs_all_blocks() -> None:
    manager = manager_of(window_spec(100))
    a = request_of(manager, "a", list(range(12)))
    compute(manager, a)
    manager.block_pool.evict_blocks(manager.coordinator.get_blocks("a")[0][:1])
    assert hit_length(manager, list(range(13))) == 0


def test_groups_agree_on_a_length_that_each_can_serve() -> None:
    manager = manager_of(full_spec(), window_spec(6))
    tokens = list(range(25))
    a = request_of(manager, "a", tokens)
    compute(manager, a)
    full, window = manager.coordinator.get_blocks("a")
    assert hit_length(manager, tokens) == 24
    # The full group ends at 16; the window has blocks 2 and 3, which 16 needs.
    manager.block_pool.evict_blocks(full[4:5])
    assert hit_length(manager, tokens) == 16
    # A prefix of 16 needs window block 3; one of 12 needs blocks 1 and 2, which are there.
    manager.block_pool.evict_blocks(window[3:4])
    assert hit_length(manager, tokens) == 12
    manager.block_pool.evict_blocks(window[1:2])
    assert hit_length(manager, tokens) == 4
    manager.block_pool.evict_blocks(full[:1])
    assert hit_length(manager, tokens) == 0


def test_hits_align_to_the_longest_blocks() -> None:
    manager = manager_of(full_spec(4), window_spec(3, 8))
    tokens = list(range(25))
    compute(manager, request_of(manager, "a", tokens))
    assert [hit_length(manager, tokens[:n]) for n in (8, 9, 13, 16, 17, 25)] == [0, 8, 8, 8, 16, 24]


def test_output_tokens_are_cached_and_found_again() -> None:
    manager = manager_of(full_spec())
    a = request_of(manager, "a", [1, 2, 3])
    compute(manager, a)
    for token in range(4, 10):
        a.append_output_token(token)
        assert manager.allocate_slots(a, 1)
        a.num_computed_tokens += 1
        manager.cache_blocks(a, a.num_computed_tokens)
    manager.free(a)
    assert hit_length(manager, list(range(1, 11))) == 8


def test_discarded_content_is_not_found_though_another_holds_it() -> None:
    manager = manager_of(full_spec())
    a, b = (request_of(manager, name, list(range(9))) for name in "ab")
    compute(manager, a)
    compute(manager, b)
    manager.discard(a)
    assert hit_length(manager, list(range(9))) == 0
    manager.check_integrity([b])


def test_integrity_check_sees_a_block_with_another_prefix() -> None:
    manager = manager_of(full_spec())
    a = request_of(manager, "a", list(range(9)))
    compute(manager, a)
    a.all_token_ids[2] = 40
    with pytest.raises(AssertionError, match="another prefix"):
        manager.check_integrity([a])


def test_lookups_are_reported_once() -> None:
    manager = manager_of(full_spec())
    manager.record_lookup(10, 8)
    stats = manager.make_prefix_cache_stats()
    assert (stats.queries, stats.hits) == (10, 8)
    assert manager.make_prefix_cache_stats().queries == 0
