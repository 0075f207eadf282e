# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of a tokenizer when it turns ids into text.

Owns the facts about one tokenizer (which ids are special, which are single bytes); knows nothing
of requests. Decoding goes through the `tokenizers` library where the tokenizer is built on it.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_CONTEXT_TOKENS = 6


class TokenText:
    """Decodes ids of one tokenizer.

    Args:
        tokenizer: a Transformers tokenizer.

    Attributes:
        special_ids: ids that `skip_special_tokens` leaves out.
        byte_ids: ids that stand for one byte each, with that byte; they only become text as a
            run. The decoder of such a tokenizer judges a run as a whole: its characters, or,
            if it is no UTF-8, a mark for each byte.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self.special_ids = frozenset(_special_ids(tokenizer, self._backend))
        self.byte_ids = _byte_ids(self._backend)
        self._anchor = self._find_anchor()
        self._anchor_text = self.decode(self._anchor)
        self.piece = lru_cache(maxsize=65_536)(self._piece)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special ones included."""
        if self._backend is not None:
            text: str = self._backend.decode(list(token_ids), skip_special_tokens=False)
            return text
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _piece(self, token_id: int) -> str:
        """Text of one token inside a text: with its leading space, where it has one.

        A token that is part of a character gives a replacement mark; `piece_in_context` does not.
        """
        if token_id in self.special_ids:
            return self.decode([token_id])
        text = self.decode([*self._anchor, token_id])
        if self._anchor and text.startswith(self._anchor_text):
            return text[len(self._anchor_text) :]
        return self.decode([token_id])

    def piece_in_context(self, context: Sequence[int], token_id: int) -> str:
        """Text that `token_id` adds after `context`.

        The bytes of a character count for the token that completes it; those before give "".
        Bytes that never become a character show as marks in the next token's text.
        """
        lone = self.piece(token_id)
        follows_bytes = bool(context) and REPLACEMENT in self.piece(context[-1])
        if REPLACEMENT not in lone and not follows_bytes:
            return lone
        tail = list(context[-_CONTEXT_TOKENS:])
        # Leave out leading tokens that begin inside a character.
        while tail and REPLACEMENT in self.piece(tail[0]) and len(tail) > 3:
            tail.pop(0)
        before = self.decode(tail).rstrip(REPLACEMENT) if tail else ""
        after = self.decode([*tail, token_id])
        if after.endswith(REPLACEMENT) or not after.startswith(before):
            return ""
        return after[len(before) :]

    def _find_anchor(self) -> list[int]:
        """An ordinary token to put in front, so that decoders keep leading spaces."""
        for text in ("a", "x", "0"):
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            if ids and not set(ids) & self.special_ids and self.decode(ids[-1:]).strip():
                return [int(ids[-1])]
        return []


def _special_ids(tokenizer: Any, backend: Any) -> set[int]:
    ids = {int(i) for i in getattr(tokenizer, "all_special_ids", ()) if i is not None}
    if backend is not None:
        added = backend.get_added_tokens_decoder()
        # `tokenizers` skips by its own flag; follow it so that texts agree.
        ids = {i for i, token in added.items() if token.special}
    return ids


def _byte_ids(backend: Any) -> dict[int, int]:
    if backend is None or not _has_byte_fallback(backend):
        return {}
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    return {i: int(token[3:5], 16) for token, i in vocab.items() if _BYTE_TOKEN.fullmatch(token)}


def _has_byte_fallback(backend: Any) -> bool:
    decoder = backend.decoder
    if decoder is None:
        return False
    state = decoder.__getstate__()
    spec = json.loads(state if isinstance(state, str) else bytes(state).decode())
    return "ByteFallback" in json.dumps(spec)
