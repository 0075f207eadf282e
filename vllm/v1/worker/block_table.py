# SPDX-License-Identifier: Apache-2.0
"""Block tables of the worker: per KV cache group, which blocks hold each row's tokens.

A row belongs to a request for its life. slot = block id * block size + offset in the block.
"""

from collections.abc import Sequence

import numpy as np

from vllm.v1.kv_cache_interface import KVCacheGroupSpec


class BlockTable:
    """The table of one group.

    Attributes:
        block_size: tokens per block of this group.
        table: [max_num_reqs, max_num_blocks], int32; entries past a row's length are stale.
    """

    def __init__(self, max_num_reqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.table = np.zeros((max_num_reqs, -(-max_model_len // block_size)), dtype=np.int32)
        self._num_blocks = [0] * max_num_reqs

    def set_row(self, row: int, block_ids: Sequence[int]) -> None:
        """Replace the blocks of `row`."""
        self._num_blocks[row] = 0
        self.append_row(row, block_ids)

    def append_row(self, row: int, block_ids: Sequence[int]) -> None:
        """Add blocks at the end of `row`."""
        begin = self._num_blocks[row]
        end = begin + len(block_ids)
        assert end <= self.table.shape[1], f"row {row} would hold {end} blocks"
        self.table[row, begin:end] = block_ids
        self._num_blocks[row] = end

    def gather(self, rows: np.ndarray, max_seq_len: int) -> np.ndarray:
        """[len(rows), blocks for `max_seq_len`]: a copy of these rows."""
        block_ids: np.ndarray = self.table[:, : -(-max_seq_len // self.block_size)][rows]
        return block_ids

    def slot_mapping(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[num_tokens], int64: the slot of each (row, position)."""
        blocks = self.table[rows, positions // self.block_size].astype(np.int64)
        slots: np.ndarray = blocks * self.block_size + positions % self.block_size
        return slots


class MultiGroupBlockTable:
    """One `BlockTable` per KV cache group, in the order of the groups."""

    def __init__(
        self, groups: Sequence[KVCacheGroupSpec], max_num_reqs: int, max_model_len: int
    ) -> None:
        self.tables = [
            BlockTable(max_num_reqs, max_model_len, group.kv_cache_spec.block_size)
            for group in groups
        ]

    def set_row(self, row: int, block_ids: tuple[list[int], ...]) -> None:
        """Replace the blocks of `row` in every group."""
        for table, ids in zip(self.tables, block_ids, strict=True):
            table.set_row(row, ids)

    def append_row(self, row: int, block_ids: tuple[list[int], ...]) -> None:
        """Add blocks at the end of `row` in every group."""
        for table, ids in zip(self.tables, block_ids, strict=True):
            table.append_row(row, ids)
