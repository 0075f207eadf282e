# SPDX-License-Identifier: Apache-2.0
"""The cache write: each token in its slot, padding nowhere, nothing else touched."""

import torch

from vllm.v1.attention.ops.reshape_and_cache import reshape_and_cache


def test_tokens_land_in_their_slots_and_nothing_else_changes():
    cache = torch.full((4, 8, 2, 5), -7.0, dtype=torch.bfloat16)
    key, value = torch.randn(5, 2, 3).bfloat16(), torch.randn(5, 2, 2).bfloat16()
    slots = torch.tensor([9, 8, -1, 31])  # the fifth row is padding too
    reshape_and_cache(key, value, cache, slots)
    flat = cache.view(32, 2, 5)
    for row, slot in ((0, 9), (1, 8), (3, 31)):
        assert torch.equal(flat[slot], torch.cat((key[row], value[row]), -1))
    untouched = [slot for slot in range(32) if slot not in (8, 9, 31)]
    assert torch.equal(flat[untouched], torch.full((29, 2, 5), -7.0, dtype=torch.bfloat16))


def test_padding_alone_writes_nothing():
    cache = torch.zeros(2, 4, 1, 2)
    reshape_and_cache(torch.ones(2, 1, 1), torch.ones(2, 1, 1), cache, torch.tensor([-1, -1]))
    reshape_and_cache(torch.ones(2, 1, 1), torch.ones(2, 1, 1), cache, torch.tensor([]).long())
    assert torch.equal(cache, torch.zeros(2, 4, 1, 2))
