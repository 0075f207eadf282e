# SPDX-License-Identifier: Apache-2.0
"""min_p, top_k and top_p: which tokens may be drawn.

Each row's outcome is a function of that row alone. Ties are broken by the lower token id, so
that top_k=1, and a top_p close to 0, are exactly the greedy choice. The vocabulary is sorted only
for rows whose top_p reaches further than a few thousand tokens.
"""

import math

import numpy as np
import torch
from torch import Tensor

from vllm.v1.sample.draw import sum_blocks

# R rows, V vocabulary. Scores are logits minus the row's largest: [R, V], float32.
_PROBES = (128, 4096, 2**62)  # the last is the whole vocabulary


def apply_min_p(scores: Tensor, min_p: np.ndarray) -> None:
    """Mask, in place, tokens below `min_p` times the likeliest one's probability.

    Args:
        min_p: [R], float32; 0 is off.
    """
    rows = np.nonzero(min_p > 0.0)[0]
    if not len(rows):
        return
    floors = [math.log(p) for p in min_p[rows].tolist()]
    floor = torch.tensor(floors, dtype=torch.float32, device=scores.device)
    picked = _take(scores, rows)
    picked.copy_(torch.where(picked < floor[:, None], -torch.inf, picked))
    _put(scores, rows, picked)


def apply_top_k_top_p(scores: Tensor, top_k: np.ndarray, top_p: np.ndarray) -> None:
    """Mask, in place, all but the likeliest tokens: first the `top_k`, then of the distribution
    over these the smallest set that reaches `top_p`.

    Args:
        top_k: [R], int64, from 1; V is off.
        top_p: [R], float64, above 0; 1 is off.
    """
    vocab_size = scores.shape[1]
    with_k = np.nonzero(top_k < vocab_size)[0]
    if len(with_k):
        picked = _take(scores, with_k)
        largest = _largest(picked, int(top_k[with_k].max()))
        num_kept = _count_within_k(largest, top_k[with_k], top_p[with_k])
        _keep_largest(picked, largest, num_kept)
        _put(scores, with_k, picked)
    only_p = np.nonzero((top_k >= vocab_size) & (top_p < 1.0))[0]
    if len(only_p):
        picked = _take(scores, only_p)
        _apply_top_p(picked, top_p[only_p])
        _put(scores, only_p, picked)


def _apply_top_p(scores: Tensor, top_p: np.ndarray) -> None:
    """top_p over the whole vocabulary: try ever more of the likeliest tokens until they reach."""
    p = torch.from_numpy(top_p).to(scores.device)
    target = p * sum_blocks(scores.exp()).sum(-1)
    vocab_size = scores.shape[1]
    index = torch.arange(len(scores), device=scores.device)
    for size in _PROBES:
        size = min(size, vocab_size)
        picked = scores if len(index) == len(scores) else scores[index]
        largest = _largest(picked, size)
        cumulative = largest.double().exp().cumsum(-1)
        num_kept = _count_before(cumulative, target[index])
        suffices = cumulative[:, -1] >= target[index]
        if size == vocab_size:
            suffices.fill_(True)
        _keep_largest(picked, largest, torch.where(suffices, num_kept, 0))
        if picked is not scores:
            scores[index] = picked
        index = index[~suffices]
        if not len(index):
            return


def _count_within_k(largest: Tensor, top_k: np.ndarray, top_p: np.ndarray) -> Tensor:
    """How many tokens of each row stay under its top_k and top_p: [R], at least 1."""
    k = torch.from_numpy(top_k).to(largest.device)
    if (top_p >= 1.0).all():
        return k
    weights = largest.double().exp()
    weights.masked_fill_(torch.arange(weights.shape[1], device=k.device) >= k[:, None], 0.0)
    cumulative = weights.cumsum(-1)
    p = torch.from_numpy(top_p).to(largest.device)
    counts = torch.minimum(_count_before(cumulative, p * cumulative[:, -1]), k)
    return torch.where(p >= 1.0, k, counts)


def _count_before(cumulative: Tensor, target: Tensor) -> Tensor:
    """Length of the shortest prefix that reaches `target`, or of all: [R], at least 1."""
    shorter = (cumulative < target[:, None]).sum(-1)
    return (shorter + 1).clamp(max=cumulative.shape[1])


def _keep_largest(scores: Tensor, largest: Tensor, num_kept: Tensor) -> None:
    """Mask all but the `num_kept` largest of each row; of equals the lower ids stay.

    Args:
        largest: the row's largest values in falling order, at least `num_kept` of them.
        num_kept: [R]; 0 leaves the row as it is.
    """
    bound = largest.gather(1, (num_kept - 1).clamp(min=0)[:, None])
    bound = torch.where(num_kept[:, None] > 0, bound, -torch.inf)
    below = scores < bound
    num_left = scores.shape[1] - _count(below)
    scores.masked_fill_(below, -torch.inf)
    has_ties = (num_left > num_kept) & (bound[:, 0] > -torch.inf)
    for row in torch.nonzero(has_ties)[:, 0].tolist():
        ties = torch.nonzero(scores[row] == bound[row])[:, 0]
        surplus = int(num_left[row] - num_kept[row])
        scores[row, ties[len(ties) - surplus :]] = -torch.inf


def _largest(scores: Tensor, k: int) -> Tensor:
    """The k largest values of each row in falling order: [R, k]."""
    if scores.device.type != "cpu":
        return torch.topk(scores, k).values
    # numpy selects and sorts float32 with vector instructions, several times faster than torch.
    values, vocab_size = scores.numpy(), scores.shape[1]
    if k < vocab_size:
        values = np.partition(values, vocab_size - k, axis=-1)[:, vocab_size - k :]
    rising = np.sort(values, axis=-1)
    return torch.from_numpy(rising[:, ::-1].copy())  # of one column, too, torch wants a copy


def _count(flags: Tensor) -> Tensor:
    """How many of each row are set: [R], int64."""
    if flags.device.type != "cpu":
        return flags.sum(-1)
    return torch.from_numpy(np.count_nonzero(flags.numpy(), axis=-1))  # vectorised, unlike sum


def _take(scores: Tensor, rows: np.ndarray) -> Tensor:
    """The rows; the tensor itself where these are all of them."""
    if len(rows) == scores.shape[0]:
        return scores
    return scores[torch.from_numpy(rows).to(scores.device)]


def _put(scores: Tensor, rows: np.ndarray, picked: Tensor) -> None:
    if picked is not scores:
        scores[torch.from_numpy(rows).to(scores.device)] = picked
