# SPDX-License-Identifier: Apache-2.0
"""Logprobs of chosen tokens and of the likeliest ones, with ranks.

Ranks count from 1 in falling order of the logit; of equal logits the lower token id comes first,
which is also the order of the listed tokens and the greedy choice.
"""

import torch
from torch import Tensor

from vllm.v1.outputs import LogprobsLists


def prompt_logprobs(logits: Tensor, token_ids: Tensor, num_logprobs: int) -> LogprobsLists:
    """Logprobs of prompt tokens under the model's own distribution.

    Args:
        logits: [n, V], of the positions before the tokens.
        token_ids: [n], int64, the prompt's tokens.
        num_logprobs: how many of the likeliest tokens to list; -1 lists the vocabulary.

    Returns:
        n rows of 1 + num_logprobs columns.
    """
    values = torch.log_softmax(logits.float(), dim=-1)
    return gather_logprobs(values, token_ids, num_logprobs)


def gather_logprobs(values: Tensor, token_ids: Tensor, num_logprobs: int) -> LogprobsLists:
    """The chosen tokens' values, then the largest values of each row.

    Args:
        values: [n, V], float32, logprobs or logits; masked tokens are -inf.
        token_ids: [n], int64, the chosen tokens.
        num_logprobs: how many of the largest to list; -1 lists all.
    """
    vocab_size = values.shape[1]
    k = vocab_size if num_logprobs == -1 else min(num_logprobs, vocab_size)
    chosen = values.gather(1, token_ids[:, None])
    columns = torch.arange(vocab_size, device=values.device)
    is_before = (values == chosen) & (columns < token_ids[:, None])
    num_before = (values > chosen).sum(-1, dtype=torch.int32) + is_before.sum(-1, dtype=torch.int32)
    top_ids = _largest(values, k)
    ids = torch.cat([token_ids[:, None], top_ids], dim=1)
    return LogprobsLists(ids.tolist(), values.gather(1, ids).tolist(), (1 + num_before).tolist())


def _largest(values: Tensor, k: int) -> Tensor:
    """Ids of the k largest of each row, in falling order, of equals the lower first: [n, k]."""
    if k == 0:
        return torch.empty((values.shape[0], 0), dtype=torch.int64, device=values.device)
    if k > values.shape[1] // 4:
        return torch.sort(values, dim=-1, descending=True, stable=True).indices[:, :k]
    bound = torch.topk(values, k).values[:, -1]
    rows = []
    # topk leaves the order of equals open, so the candidates are sorted again, by id first.
    for row, least in zip(values, bound, strict=True):
        candidates = torch.nonzero(row >= least)[:, 0]
        order = torch.sort(row[candidates], descending=True, stable=True).indices[:k]
        rows.append(candidates[order])
    return torch.stack(rows)
