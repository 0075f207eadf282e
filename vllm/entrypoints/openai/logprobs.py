# SPDX-License-Identifier: Apache-2.0
"""Logprobs in the two forms the API has: parallel lists for completions, records for chat.

JSON has no NaN and no infinity: logprobs are clamped from below at -9999.
"""

from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionLogProb,
    ChatCompletionLogProbsContent,
)
from vllm.entrypoints.openai.completion.protocol import CompletionLogProbs
from vllm.entrypoints.openai.protocol import PromptLogprob, PromptLogprobsWire
from vllm.logprobs import Logprob, LogprobsOnePosition, PromptLogprobs

LOWEST = -9999.0


def clamp(logprob: float) -> float:
    """`logprob`, or the lowest value JSON clients get for -inf and NaN."""
    return logprob if logprob > LOWEST else LOWEST


def token_text(token_id: int, entry: Logprob | None) -> str:
    """The token as text; its id where the text is unknown."""
    if entry is None or entry.decoded_token is None:
        return f"token_id:{token_id}"
    return entry.decoded_token


class CompletionLogprobsBuilder:
    """Builds a choice's completion logprobs piece by piece, with running text offsets.

    Args:
        silent_ids: token ids that leave no text (special tokens that are skipped).
    """

    def __init__(self, silent_ids: frozenset[int]) -> None:
        self._silent_ids = silent_ids
        self._offset = 0

    def add_prompt(
        self, text: str, token_ids: Sequence[int], rows: PromptLogprobs, first_token: str
    ) -> CompletionLogProbs:
        """Logprobs of an echoed prompt; the first token has none.

        A prompt token that is not in the text (a begin marker) takes no room in the offsets.
        """
        result = CompletionLogProbs()
        position = 0
        for token_id, row in zip(token_ids, rows, strict=True):
            entry = row.get(token_id) if row else None
            token = token_text(token_id, entry) if row else first_token
            _append(result, token, position, entry, row)
            if text.startswith(token, position):
                position += len(token)
        self._offset = len(text)
        return result

    def add(
        self, token_ids: Sequence[int], rows: Sequence[LogprobsOnePosition]
    ) -> CompletionLogProbs:
        """Logprobs of generated tokens."""
        result = CompletionLogProbs()
        for token_id, row in zip(token_ids, rows, strict=True):
            entry = row.get(token_id)
            token = token_text(token_id, entry)
            _append(result, token, self._offset, entry, row)
            if token_id not in self._silent_ids:
                self._offset += len(token)
        return result


def _append(
    result: CompletionLogProbs,
    token: str,
    offset: int,
    entry: Logprob | None,
    row: LogprobsOnePosition | None,
) -> None:
    result.tokens.append(token)
    result.text_offset.append(offset)
    result.token_logprobs.append(clamp(entry.logprob) if entry is not None else None)
    if row is None:
        result.top_logprobs.append(None)
        return
    top: dict[str, float] = {}
    for token_id, candidate in _by_rank(row):
        top.setdefault(token_text(token_id, candidate), clamp(candidate.logprob))
    result.top_logprobs.append(top)


def _by_rank(row: LogprobsOnePosition) -> list[tuple[int, Logprob]]:
    return sorted(row.items(), key=lambda item: (item[1].rank or 0, -item[1].logprob))


def extend(first: CompletionLogProbs, second: CompletionLogProbs) -> CompletionLogProbs:
    """The two, one after the other."""
    return CompletionLogProbs(
        tokens=first.tokens + second.tokens,
        text_offset=first.text_offset + second.text_offset,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def chat_logprobs(
    token_ids: Sequence[int],
    rows: Sequence[LogprobsOnePosition],
    num_top: int,
    tokenizer: Any,
) -> list[ChatCompletionLogProbsContent]:
    """Chat logprobs of generated tokens; `num_top` of -1 returns all there are."""
    content = []
    for token_id, row in zip(token_ids, rows, strict=True):
        entry = row.get(token_id)
        ranked = _by_rank(row)
        if num_top >= 0:
            ranked = [(i, e) for i, e in ranked if e.rank is None or e.rank <= num_top][:num_top]
        text = token_text(token_id, entry)
        content.append(
            ChatCompletionLogProbsContent(
                token=text,
                logprob=clamp(entry.logprob) if entry is not None else LOWEST,
                bytes=token_bytes(tokenizer, token_id, text),
                top_logprobs=[_top_entry(tokenizer, i, e) for i, e in ranked],
            )
        )
    return content


def _top_entry(tokenizer: Any, token_id: int, entry: Logprob) -> ChatCompletionLogProb:
    text = token_text(token_id, entry)
    return ChatCompletionLogProb(
        token=text, logprob=clamp(entry.logprob), bytes=token_bytes(tokenizer, token_id, text)
    )


def wire_prompt_logprobs(rows: PromptLogprobs | None) -> PromptLogprobsWire | None:
    """Prompt logprobs by token id, as upstream's field of that name."""
    if rows is None:
        return None
    return [
        None
        if row is None
        else {
            token_id: PromptLogprob(
                logprob=clamp(e.logprob), rank=e.rank, decoded_token=e.decoded_token
            )
            for token_id, e in row.items()
        }
        for row in rows
    ]


def _byte_alphabet() -> dict[str, int]:
    # Byte-level tokenizers write each byte as one printable character: printable Latin-1 stands
    # for itself, the other bytes follow in order from U+0100.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(plain)]
    table = {chr(b): b for b in plain}
    table.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return table


_BYTES = _byte_alphabet()


def token_bytes(tokenizer: Any, token_id: int, text: str) -> list[int]:
    """UTF-8 bytes of a token, also where it is part of a character.

    Args:
        text: the token decoded alone; holds U+FFFD where it is not whole characters.
    """
    if "\ufffd" in text and tokenizer is not None:
        piece = tokenizer.convert_ids_to_tokens([token_id])[0] or ""
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return [int(piece[3:5], 16)]
        if all(char in _BYTES for char in piece):
            return [_BYTES[char] for char in piece]
    return list(text.encode())
