# SPDX-License-Identifier: Apache-2.0
"""Cutting a flat batch into tiles: which queries are computed with which cached keys.

Plain index arithmetic, done once per step and per window; knows no dtype, head or score.
A tile holds either one query of each of several requests (their contexts padded to the longest),
or several queries of one request. Slots that pad a tile repeat a slot of the same request: cache
memory that was never written is never read, so whatever it holds cannot reach a result.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vllm.v1.kv_cache_interface import window_start

# Bound on the padded keys of one tile of many requests: its fp32 copy stays near the cache.
# Tiles of 32,768 keys took 4.5 times as long for 32 requests of 1,000 keys.
MAX_PADDED_KEYS = 2_048
_SMALL_TILE_KEYS = 1_024  # below this, padding costs less than one more tile
_WINDOW_CHUNK = 256  # fewest queries in a tile of a windowed prompt


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """A flat batch over paged keys.

    Attributes:
        query_start_loc: [num_reqs + 1], first row of each request's queries in the flat batch.
        seq_lens: [num_reqs], keys of each request, those of its queries included; its queries
            are the last positions of the sequence.
        block_table: [num_reqs, max_blocks]; entries that no query can see are never read.
        block_size: tokens per block.
    """

    query_start_loc: np.ndarray
    seq_lens: np.ndarray
    block_table: np.ndarray
    block_size: int


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries and the keys they are computed with: `num_reqs` is 1 or `num_queries` is 1.

    Attributes:
        rows: rows of the flat batch, request by request; a slice or [num_reqs * num_queries].
        slots: [num_reqs * num_keys], int64, cache slots of the keys.
        num_reqs: requests.
        num_queries: queries per request.
        causal: the queries are the last keys, and none sees a later key; `mask` is None.
        mask: [num_reqs, num_queries, num_keys], true where visible; None: all keys, or causal.
    """

    rows: slice | Tensor
    slots: Tensor
    num_reqs: int
    num_queries: int
    causal: bool = False
    mask: Tensor | None = None

    @property
    def num_keys(self) -> int:
        """Keys per request, padding included."""
        return self.slots.shape[0] // self.num_reqs


@dataclass(slots=True)
class TilePlan:
    """Tiles that cover every query which sees a key.

    Attributes:
        uncovered_rows: rows whose output is 0, because they see no key.
    """

    tiles: list[Tile] = field(default_factory=list)
    uncovered_rows: list[int] = field(default_factory=list)


def plan_tiles(
    batch: PagedBatch,
    *,
    causal: bool,
    sliding_window: int | None,
    device: torch.device | str = "cpu",
    max_padded_keys: int = MAX_PADDED_KEYS,
) -> TilePlan:
    """Cut `batch` into tiles.

    Args:
        causal: a query sees no later position.
        sliding_window: keys a query sees, itself included, or None for all. Without causality
            the window reaches equally far to both sides.
        max_padded_keys: bound on requests times keys of a tile of many requests.
    """
    return _Planner(batch, causal, sliding_window, torch.device(device), max_padded_keys).plan()


class _Planner:
    """The working state of one `plan_tiles` call."""

    def __init__(
        self,
        batch: PagedBatch,
        causal: bool,
        sliding_window: int | None,
        device: torch.device,
        max_padded_keys: int,
    ) -> None:
        self.batch = batch
        self.causal = causal
        self.sliding_window = sliding_window
        self.device = device
        self.max_padded_keys = max_padded_keys
        self._masks: dict[tuple[int, int, int], Tensor] = {}

    def plan(self) -> TilePlan:
        query_lens = np.diff(self.batch.query_start_loc)
        seq_lens = self.batch.seq_lens
        result = TilePlan()
        single = np.nonzero((query_lens == 1) & (seq_lens > 0))[0]
        if single.size:
            result.tiles.extend(self._tiles_of_single_queries(single))
        for req in np.nonzero((query_lens > 1) | ((query_lens == 1) & (seq_lens < 1)))[0].tolist():
            first_row, last_row = self.batch.query_start_loc[req : req + 2].tolist()
            num_keys = int(seq_lens[req])
            # Queries before position 0 exist only if a sequence is shorter than its queries.
            num_lost = max(0, last_row - first_row - num_keys)
            result.uncovered_rows.extend(range(first_row, first_row + num_lost))
            if num_keys:
                tiles = self._tiles_of_one_request(req, first_row + num_lost, last_row, num_keys)
                result.tiles.extend(tiles)
        return result

    def _tiles_of_single_queries(self, reqs: np.ndarray) -> Iterator[Tile]:
        seq_lens = self.batch.seq_lens[reqs].astype(np.int64)
        first = np.zeros_like(seq_lens)
        if self.sliding_window is not None:
            first = np.maximum(0, window_start(seq_lens - 1, self.sliding_window))
        num_keys = seq_lens - first
        order = np.argsort(-num_keys, kind="stable")
        for begin, end in _similar_lengths(num_keys[order].tolist(), self.max_padded_keys):
            chosen = np.sort(order[begin:end])
            yield self._single_query_tile(reqs[chosen], first[chosen], num_keys[chosen])

    def _single_query_tile(self, reqs: np.ndarray, first: np.ndarray, lens: np.ndarray) -> Tile:
        longest = int(lens.max())
        offsets = np.arange(longest)
        positions = first[:, None] + np.minimum(offsets, lens[:, None] - 1)
        mask = None
        if int(lens.min()) < longest:
            mask = self._tensor(offsets < lens[:, None]).unsqueeze(1)
        rows: slice | Tensor
        rows_np = self.batch.query_start_loc[reqs].astype(np.int64)
        if int(rows_np[-1]) - int(rows_np[0]) == len(reqs) - 1:
            rows = slice(int(rows_np[0]), int(rows_np[-1]) + 1)
        else:
            rows = self._tensor(rows_np)
        return Tile(rows, self._slots(reqs[:, None], positions), len(reqs), 1, mask=mask)

    def _tiles_of_one_request(
        self, req: int, first_row: int, last_row: int, num_keys: int
    ) -> Iterator[Tile]:
        num_queries = last_row - first_row
        window = self.sliding_window
        if window is None or num_keys <= window:
            slots = self._slots(np.array([req]), np.arange(num_keys))
            yield Tile(slice(first_row, last_row), slots, 1, num_queries, causal=self.causal)
            return
        chunk = max(_WINDOW_CHUNK, window)
        first_query = num_keys - num_queries
        for begin in range(first_query, num_keys, chunk):
            end = min(begin + chunk, num_keys)
            first_key = max(0, window_start(begin, window))
            last_key = end if self.causal else min(num_keys, end - 1 + window)
            row = first_row + begin - first_query
            yield Tile(
                slice(row, row + end - begin),
                self._slots(np.array([req]), np.arange(first_key, last_key)),
                1,
                end - begin,
                mask=self._window_mask(end - begin, last_key - first_key, begin - first_key),
            )

    def _window_mask(self, num_queries: int, num_keys: int, shift: int) -> Tensor:
        """[1, num_queries, num_keys]; `shift` is the first query's index among the keys."""
        cached = self._masks.get((num_queries, num_keys, shift))
        if cached is None:
            assert self.sliding_window is not None, "only a window needs a mask"
            query = np.arange(shift, shift + num_queries)[:, None]
            key = np.arange(num_keys)[None, :]
            visible = key >= window_start(query, self.sliding_window)
            visible &= (
                key <= query if self.causal else query >= window_start(key, self.sliding_window)
            )
            cached = self._tensor(visible).unsqueeze(0)
            self._masks[num_queries, num_keys, shift] = cached
        return cached

    def _slots(self, reqs: np.ndarray, positions: np.ndarray) -> Tensor:
        block_size = self.batch.block_size
        blocks = self.batch.block_table[reqs, positions // block_size].astype(np.int64)
        return self._tensor((blocks * block_size + positions % block_size).reshape(-1))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _similar_lengths(lengths: Sequence[int], max_padded_keys: int) -> Iterator[tuple[int, int]]:
    """Split falling `lengths` into ranges whose padding is worth it.

    A range ends where the next length is below half its longest, unless the range is small, or
    where padding would pass the bound.
    """
    begin = 0
    for index in range(1, len(lengths) + 1):
        if index < len(lengths):
            padded = lengths[begin] * (index - begin + 1)
            similar = 2 * lengths[index] >= lengths[begin]
            if padded <= max_padded_keys and (similar or padded <= _SMALL_TILE_KEYS):
                continue
        yield begin, index
        begin = index
