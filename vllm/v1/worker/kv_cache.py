# SPDX-License-Identifier: Apache-2.0
"""The KV cache's memory: allocated raw, viewed by each layer in its backend's shape.

Layers of different groups may view the same bytes; a block belongs to one group at a time, and
page b of every view is bytes b * page .. (b + 1) * page of the allocation.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from vllm.model_executor.layers.attention.attention import Attention
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


def initialize_kv_cache(
    kv_cache_config: KVCacheConfig,
    attention_layers: Mapping[str, Attention],
    device: torch.device,
) -> list[Tensor]:
    """Allocate the cache and bind each layer's view of it.

    Returns:
        The raw allocations, int8, in the order of the configuration. On the CPU a page takes
        memory when it is first written: nothing here touches them.
    """
    spec_of = {
        name: group.kv_cache_spec
        for group in kv_cache_config.kv_cache_groups
        for name in group.layer_names
    }
    allocations = []
    for tensor in kv_cache_config.kv_cache_tensors:
        raw = torch.empty(tensor.size, dtype=torch.int8, device=device)
        allocations.append(raw)
        for name in tensor.shared_by:
            layer = attention_layers[name]
            layer.bind_kv_cache(_view(raw, spec_of[name], layer, kv_cache_config.num_blocks))
    return allocations


def _view(raw: Tensor, spec: KVCacheSpec, layer: Attention, num_blocks: int) -> Tensor:
    shape = layer.get_attn_backend().get_kv_cache_shape(
        num_blocks,
        spec.block_size,
        spec.num_kv_heads,
        head_size=spec.head_size,
        head_size_v=spec.head_size_v,
    )
    assert raw.numel() == num_blocks * spec.page_size_bytes, (
        f"{layer.layer_name}: an allocation of {raw.numel()} bytes for {num_blocks} pages of "
        f"{spec.page_size_bytes}"
    )
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return raw.view(dtype).view(shape)
