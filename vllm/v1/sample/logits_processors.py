# SPDX-License-Identifier: Apache-2.0
"""Masks and biases on logits, in place. A row that no entry names is never touched."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vllm.v1.sample.metadata import TokenSet, TokenValues

# N rows, V vocabulary. All functions take logits [N, V], float32, contiguous.
_ALL_ALLOWED = -1


def apply_allowed(logits: Tensor, allowed: Sequence[TokenSet]) -> None:
    """Leave each named row only its tokens."""
    for entry in allowed:
        row = logits[entry.row]
        ids = torch.from_numpy(entry.token_ids).to(logits.device)
        kept = row[ids]
        row.fill_(-torch.inf)
        row[ids] = kept


def apply_banned(logits: Tensor, banned: Sequence[TokenSet]) -> None:
    """Take tokens away."""
    if not banned:
        return
    index = np.concatenate([entry.row * logits.shape[1] + entry.token_ids for entry in banned])
    logits.view(-1)[torch.from_numpy(index).to(logits.device)] = -torch.inf


def apply_bias(logits: Tensor, bias: Sequence[TokenValues]) -> None:
    """Add each row's values; a token that is masked stays masked."""
    if not bias:
        return
    index = np.concatenate([entry.row * logits.shape[1] + entry.token_ids for entry in bias])
    values = np.concatenate([entry.values for entry in bias])
    flat, where = logits.view(-1), torch.from_numpy(index).to(logits.device)
    flat[where] += torch.from_numpy(values).to(logits.device)


def apply_grammar_bitmask(logits: Tensor, bitmask: Tensor | None) -> None:
    """Take away what the grammars do not allow.

    Args:
        bitmask: [N, ceil(V / 32)], int32, bit set means allowed; a row of ones is free. Tokens
            past its end are not allowed in rows that have a grammar. None: no row has one.
    """
    if bitmask is None:
        return
    words = bitmask.cpu().numpy()
    rows = np.nonzero((words != _ALL_ALLOWED).any(axis=1))[0]
    vocab_size = logits.shape[1]
    for row in rows.tolist():
        bits = np.unpackbits(words[row].view(np.uint8), bitorder="little")[:vocab_size]
        forbidden = np.ones(vocab_size, dtype=np.bool_)
        forbidden[: len(bits)] = bits == 0
        logits[row].masked_fill_(torch.from_numpy(forbidden).to(logits.device), -torch.inf)
