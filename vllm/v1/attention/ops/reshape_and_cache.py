# SPDX-License-Identifier: Apache-2.0
"""Writing keys and values into the paged cache."""

import torch
from torch import Tensor


def reshape_and_cache(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store each token's key and value in its slot; tokens whose slot is -1 are not stored.

    Args:
        key: [num_tokens, num_kv_heads, head_size]; rows past `slot_mapping` are ignored.
        value: [num_tokens, num_kv_heads, head_size_v].
        kv_cache: [num_blocks, block_size, num_kv_heads, head_size + head_size_v], contiguous.
        slot_mapping: [num_actual_tokens], int64: block id * block size + offset in the block.
    """
    num_tokens = slot_mapping.shape[0]
    if num_tokens == 0:
        return
    rows = torch.cat((key[:num_tokens], value[:num_tokens]), dim=-1).to(kv_cache.dtype)
    if int(slot_mapping.min()) < 0:
        written = slot_mapping >= 0
        rows, slot_mapping = rows[written], slot_mapping[written]
    kv_cache.view(-1, *kv_cache.shape[2:]).index_copy_(0, slot_mapping, rows)
