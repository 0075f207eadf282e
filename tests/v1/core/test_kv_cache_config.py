# SPDX-License-Identifier: Apache-2.0
"""The plan of the cache's memory."""

import pytest

from tests.v1.core.utils import full_spec, window_spec
from vllm.config.cache import CacheConfig
from vllm.exceptions import ConfigError
from vllm.v1.core.kv_cache_config import (
    get_kv_cache_config,
    get_kv_cache_groups,
    largest_length,
    max_blocks_per_request,
    max_concurrency,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

PAGE = full_spec().page_size_bytes


def layers(*specs: KVCacheSpec) -> dict[str, KVCacheSpec]:
    return {f"l{i}": spec for i, spec in enumerate(specs)}


def test_equal_layers_form_one_group_with_a_tensor_each() -> None:
    config = get_kv_cache_config(layers(*[full_spec()] * 3), PAGE * 3 * 10 + 5, CacheConfig(), 36)
    assert config.num_blocks == 10
    assert [g.layer_names for g in config.kv_cache_groups] == [("l0", "l1", "l2")]
    assert [t.shared_by for t in config.kv_cache_tensors] == [("l0",), ("l1",), ("l2",)]
    assert all(t.size == 10 * PAGE for t in config.kv_cache_tensors)


def test_mixed_layers_form_groups_of_one_size_that_share_tensors() -> None:
    specs = layers(*[full_spec(), window_spec(8), window_spec(8), window_spec(8)] * 2)
    config = get_kv_cache_config(specs, PAGE * 2 * 200, CacheConfig(), 40)
    groups = [g.layer_names for g in config.kv_cache_groups]
    assert groups == [("l0", "l4"), ("l1", "l5"), ("l2", "l6"), ("l3", "l7")]
    assert config.num_blocks == 200
    assert [t.shared_by for t in config.kv_cache_tensors] == [
        ("l0", "l1", "l2", "l3"),
        ("l4", "l5", "l6", "l7"),
    ]


@pytest.mark.parametrize(
    ("num_full", "num_window", "sizes"),
    [(4, 5, [4, 5]), (2, 5, [2, 2, 2, 1]), (1, 3, [1, 1, 1, 1]), (2, 3, [2, 2, 1])],
)
def test_group_size_pads_little(num_full: int, num_window: int, sizes: list[int]) -> None:
    specs = layers(*[full_spec()] * num_full, *[window_spec(8)] * num_window)
    groups = get_kv_cache_groups(specs)
    assert [len(g.layer_names) for g in groups] == sizes
    config = get_kv_cache_config(specs, 10**6, CacheConfig(), 40)
    names = sorted(name for t in config.kv_cache_tensors for name in t.shared_by)
    assert names == sorted(specs)


def test_smaller_pages_get_longer_blocks() -> None:
    specs = layers(full_spec(4, head_size=16, head_size_v=16), window_spec(8, 4))
    groups = get_kv_cache_groups(specs)
    assert [g.kv_cache_spec.block_size for g in groups] == [4, 8]
    assert len({g.kv_cache_spec.page_size_bytes for g in groups}) == 1


def test_pages_that_do_not_divide_are_refused_by_name() -> None:
    specs = layers(full_spec(), full_spec(num_kv_heads=3), full_spec(num_kv_heads=2))
    with pytest.raises(ConfigError, match=r"layers l2 keep 512 bytes.*768 bytes of l1"):
        get_kv_cache_config(specs, 10**6, CacheConfig(), 40)


def test_a_model_without_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="no attention layer"):
        get_kv_cache_config({}, 10**6, CacheConfig(), 40)


def test_disabling_the_hybrid_manager_keeps_whole_contexts() -> None:
    cache_config = CacheConfig(disable_hybrid_kv_cache_manager=True)
    config = get_kv_cache_config(layers(full_spec(), window_spec(8)), 10**6, cache_config, 40)
    (group,) = config.kv_cache_groups
    assert type(group.kv_cache_spec) is FullAttentionSpec
    assert group.layer_names == ("l0", "l1")


def test_too_little_memory_is_refused_with_both_numbers_and_a_length_that_works() -> None:
    with pytest.raises(ConfigError, match=r"needs a KV cache of 11 blocks.*there are 8") as error:
        get_kv_cache_config(layers(full_spec()), PAGE * 8, CacheConfig(), 40)
    assert "max_model_len=28 or less" in str(error.value)
    assert get_kv_cache_config(layers(full_spec()), PAGE * 8, CacheConfig(), 28).num_blocks == 8
    with pytest.raises(ConfigError, match="there are 0"):
        get_kv_cache_config(layers(full_spec()), 0, CacheConfig(), 40)


def test_override_sets_the_blocks_and_must_suffice_too() -> None:
    config = get_kv_cache_config(
        layers(full_spec()), 0, CacheConfig(num_gpu_blocks_override=11), 40
    )
    assert config.num_blocks == 11
    with pytest.raises(ConfigError, match="there are 10"):
        get_kv_cache_config(layers(full_spec()), 10**9, CacheConfig(num_gpu_blocks_override=10), 40)


def test_no_more_blocks_than_all_requests_can_use() -> None:
    config = get_kv_cache_config(
        layers(full_spec()), 10**9, CacheConfig(), 40, max_num_seqs=3, max_num_batched_tokens=8
    )
    assert config.num_blocks == 1 + 3 * 10
    assert max_concurrency(config, 40, 8) == 3.0


def test_a_window_bounds_the_blocks_of_a_request() -> None:
    spec = window_spec(8, 4)
    # 7 visible tokens before a step of 4: 11 tokens that begin anywhere in a block.
    assert max_blocks_per_request(spec, 1000, 4) == 4
    assert max_blocks_per_request(spec, 5, 4) == 2
    assert max_blocks_per_request(window_spec(1, 4), 1000, 1) == 1
    assert max_blocks_per_request(full_spec(), 1000, 4) == 250


def test_largest_length_is_exact() -> None:
    groups = get_kv_cache_groups(layers(full_spec(), window_spec(8)))
    assert largest_length(groups, 14, 4) == 40
    assert largest_length(groups, 1, 4) == 0
    assert largest_length(get_kv_cache_groups(layers(window_spec(8))), 4, 4) == 2**31
