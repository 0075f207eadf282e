# SPDX-License-Identifier: Apache-2.0
"""The cache's memory: views, sharing, and that it is taken only as it is used."""

import subprocess
import sys
from pathlib import Path

import torch

from tests.v1.worker.tiny import TinyModel, kv_cache_config, make_vllm_config
from vllm.utils.mem_utils import MIB, memory_snapshot
from vllm.v1.worker.block_table import BlockTable
from vllm.v1.worker.kv_cache import initialize_kv_cache


def test_groups_share_pages_and_layers_of_one_group_do_not():
    config = make_vllm_config()
    model = TinyModel(config, [None, 5, None, 5])
    initialize_kv_cache(
        kv_cache_config(model, 10), config.static_forward_context, torch.device("cpu")
    )
    full_0, window_0, full_1, _ = (layer.kv_cache for layer in model.attn)
    assert full_0.shape == (10, 4, 2, 12)
    full_0.zero_()
    full_1.zero_()
    window_0[3] = 1.0
    assert bool((full_0[3] == 1).all()) and not bool(full_0[2].any()) and not bool(full_1.any())


def test_a_page_takes_memory_only_when_it_is_written():
    # In a process of its own: here freed memory that is still resident may be handed out again.
    code = "from tests.v1.worker.test_kv_cache import check_lazy_pages as c; c()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def check_lazy_pages() -> None:
    config = make_vllm_config()
    model = TinyModel(config, [None])
    page = model.attn[0].get_kv_cache_spec().page_size_bytes
    before = memory_snapshot().resident
    kept = initialize_kv_cache(
        kv_cache_config(model, 256 * MIB // page),
        config.static_forward_context,
        torch.device("cpu"),
    )
    assert memory_snapshot().resident - before < 16 * MIB
    kept[0][: 64 * MIB].zero_()
    assert memory_snapshot().resident - before > 60 * MIB


def test_block_table_rows_and_slots():
    import numpy as np

    table = BlockTable(3, 10, 4)
    table.set_row(1, [7])
    table.append_row(1, [3, 9])
    table.set_row(0, [2])
    assert table.gather(np.array([1, 0]), 8).tolist() == [[7, 3], [2, 0]]
    slots = table.slot_mapping(np.array([1, 1, 1, 0]), np.array([0, 5, 9, 3]))
    assert slots.tolist() == [28, 13, 37, 11]
    table.set_row(1, [5])
    table.append_row(1, [6])
    assert table.gather(np.array([1]), 8).tolist() == [[5, 6]]
