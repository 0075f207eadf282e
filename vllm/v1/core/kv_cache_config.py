# SPDX-License-Identifier: Apache-2.0
"""The plan of the KV cache's memory: which layers share a block table, how many blocks there are.

Pure arithmetic on the layers' specs; allocates nothing.

All groups draw blocks from one pool, so a block must take the same bytes in each. Two steps make
it so. Specs whose pages differ get longer blocks until the pages are equal. Then the layers of
each spec are dealt into groups of one size, and the i-th layers of all groups share tensor i:

                 group 0 (full)   group 1 (window)   group 2 (window)
    tensor 0     layer 0          layer 1            layer 3
    tensor 1     layer 2          layer 4            -                 padding

A block id is held by one group at a time, so the layers of a tensor never meet in a page.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

from vllm.config.cache import CacheConfig
from vllm.exceptions import ConfigError
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(-a // b)


def max_blocks_per_request(spec: KVCacheSpec, num_tokens: int, max_in_flight_tokens: int) -> int:
    """Most blocks a group ever holds for a request that grows to `num_tokens`.

    Args:
        max_in_flight_tokens: most tokens the request gets in one step.
    """
    full = cdiv(num_tokens, spec.block_size)
    if not isinstance(spec, SlidingWindowSpec):
        return full
    # A step reads the window before its first token and writes its own; the span may begin
    # anywhere in a block.
    span = spec.sliding_window - 1 + min(max_in_flight_tokens, num_tokens)
    return min(full, cdiv(span - 1, spec.block_size) + 1)


def total_blocks_per_request(
    groups: Iterable[KVCacheGroupSpec], num_tokens: int, max_in_flight_tokens: int
) -> int:
    """`max_blocks_per_request` over all groups."""
    return sum(
        max_blocks_per_request(g.kv_cache_spec, num_tokens, max_in_flight_tokens) for g in groups
    )


def largest_length(
    groups: Sequence[KVCacheGroupSpec], num_usable_blocks: int, max_in_flight_tokens: int
) -> int:
    """Longest request, in tokens, that `num_usable_blocks` can hold when it is alone.

    A window bounds the blocks a request needs; a length that nothing bounds is given as 2**31.
    """
    low, high = 0, 2**31
    while low < high:
        middle = (low + high + 1) // 2
        if total_blocks_per_request(groups, middle, max_in_flight_tokens) <= num_usable_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def max_concurrency(config: KVCacheConfig, max_model_len: int, max_in_flight_tokens: int) -> float:
    """How many requests of `max_model_len` tokens the cache holds at once."""
    per_request = total_blocks_per_request(
        config.kv_cache_groups, max_model_len, max_in_flight_tokens
    )
    return (config.num_blocks - 1) / per_request


def get_kv_cache_groups(specs: Mapping[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Layers with equal specs, dealt into groups of one size, see the module's drawing.

    The size is that of the smallest set of equal layers, so that little is padded; when the
    largest set is hardly larger (under 1.5 times) it is that of the largest, so that no set
    needs two block tables for a few layers.

    Raises:
        ConfigError: the pages cannot be made equal.
    """
    layers_of: dict[KVCacheSpec, list[str]] = {}
    for name, spec in _with_equal_pages(specs).items():
        layers_of.setdefault(spec, []).append(name)
    smallest = min(len(names) for names in layers_of.values())
    largest = max(len(names) for names in layers_of.values())
    size = largest if largest < 1.5 * smallest else smallest
    groups = []
    for spec, names in layers_of.items():
        num_groups = cdiv(len(names), size)
        groups += [KVCacheGroupSpec(tuple(names[i::num_groups]), spec) for i in range(num_groups)]
    return tuple(groups)


def get_kv_cache_config(
    specs: Mapping[str, KVCacheSpec],
    available_bytes: int,
    cache_config: CacheConfig,
    max_model_len: int,
    *,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
) -> KVCacheConfig:
    """Plan the cache.

    Args:
        specs: what each attention layer keeps, by name.
        available_bytes: memory for the cache; `num_gpu_blocks_override` takes precedence.
        max_num_seqs: when given, no more blocks than so many requests of `max_model_len` use.
        max_num_batched_tokens: most tokens in a step; None takes `max_model_len`.

    Raises:
        ConfigError: no layer keeps anything, pages cannot be made equal, or one request of
            `max_model_len` does not fit.
    """
    if not specs:
        raise ConfigError("the model has no attention layer that keeps keys and values")
    if cache_config.disable_hybrid_kv_cache_manager:
        specs = {name: _without_window(spec) for name, spec in specs.items()}
    groups = get_kv_cache_groups(specs)
    num_layers = max(len(group.layer_names) for group in groups)
    page_size = groups[0].kv_cache_spec.page_size_bytes
    in_flight = max_num_batched_tokens or max_model_len
    needed = total_blocks_per_request(groups, max_model_len, in_flight)

    num_blocks = cache_config.num_gpu_blocks_override
    if num_blocks is None:
        num_blocks = available_bytes // (page_size * num_layers)
        if max_num_seqs is not None:
            num_blocks = min(num_blocks, 1 + needed * max_num_seqs)
    if num_blocks - 1 < needed:
        _refuse_too_small(groups, num_blocks, page_size * num_layers, max_model_len, in_flight)
    tensors = tuple(
        KVCacheTensor(
            size=num_blocks * page_size,
            shared_by=tuple(g.layer_names[i] for g in groups if i < len(g.layer_names)),
        )
        for i in range(num_layers)
    )
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)


def _refuse_too_small(
    groups: Sequence[KVCacheGroupSpec],
    num_blocks: int,
    block_bytes: int,
    max_model_len: int,
    in_flight: int,
) -> None:
    needed = 1 + total_blocks_per_request(groups, max_model_len, in_flight)
    longest = largest_length(groups, max(num_blocks - 1, 0), in_flight)
    remedy = f"pass max_model_len={longest} or less, or" if longest else "pass"
    raise ConfigError(
        f"one request of max_model_len={max_model_len} needs a KV cache of {needed} blocks "
        f"({needed * block_bytes / 2**20:.1f} MiB), and there are {max(num_blocks, 0)} "
        f"({max(num_blocks, 0) * block_bytes / 2**20:.1f} MiB); {remedy} more memory "
        "(kv_cache_memory_bytes, gpu_memory_utilization)"
    )


def _with_equal_pages(specs: Mapping[str, KVCacheSpec]) -> dict[str, KVCacheSpec]:
    """Specs whose pages all have the size of the largest; shorter ones get longer blocks."""
    page = max(spec.page_size_bytes for spec in specs.values())
    odd = [name for name, spec in specs.items() if page % spec.page_size_bytes]
    if odd:
        largest = next(name for name, spec in specs.items() if spec.page_size_bytes == page)
        raise ConfigError(
            f"layers {', '.join(odd)} keep {specs[odd[0]].page_size_bytes} bytes a block, which "
            f"does not divide the {page} bytes of {largest}; layers of such sizes cannot share "
            "one KV cache"
        )
    return {
        name: replace(spec, block_size=spec.block_size * (page // spec.page_size_bytes))
        for name, spec in specs.items()
    }


def _without_window(spec: KVCacheSpec) -> KVCacheSpec:
    """The spec with whole contexts kept. Only storage changes: the layer still masks."""
    if not isinstance(spec, SlidingWindowSpec):
        return spec
    return FullAttentionSpec(**{f.name: getattr(spec, f.name) for f in fields(FullAttentionSpec)})
