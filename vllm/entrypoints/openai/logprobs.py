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
from vllm.v1.engine.detokenizer import IncrementalDecoder
from vllm.v1.engine.token_text import TokenText

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

    An offset is the length of the text before the token, in the text that the client gets. Text
    is settled later than its tokens come (the bytes of a character) and may be taken back before
    it is given out (a stop string), so tokens whose place is not yet sure wait for the next piece.

    Args:
        token_text: the tokenizer's side; None where there is no text.
        prompt_token_ids: context of the output.
        skip_special_tokens: whether special tokens leave no text in the output.
    """

    def __init__(
        self,
        token_text: TokenText | None,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
    ) -> None:
        self._token_text = token_text
        self._decoder = None
        if token_text is not None:
            self._decoder = IncrementalDecoder(
                token_text, prompt_token_ids, skip_special_tokens=skip_special_tokens
            )
        self._num_decoded = 0  # chars that the tokens so far amount to
        self._num_given = 0  # chars that the client has
        self._waiting = CompletionLogProbs()

    def add_prompt(
        self, text: str, token_ids: Sequence[int], rows: PromptLogprobs, first_token: str
    ) -> CompletionLogProbs:
        """Logprobs of an echoed prompt; the first token has none."""
        result = CompletionLogProbs()
        offsets = self._prompt_offsets(text, token_ids)
        for token_id, row, offset in zip(token_ids, rows, offsets, strict=True):
            entry = row.get(token_id) if row else None
            token = token_text(token_id, entry) if row else first_token
            _append(result, token, offset, entry, row)
        self._num_decoded = self._num_given = len(text)
        return result

    def add(
        self,
        token_ids: Sequence[int],
        rows: Sequence[LogprobsOnePosition],
        text: str,
        *,
        is_last: bool,
    ) -> CompletionLogProbs:
        """Logprobs of generated tokens, and of those that waited.

        Args:
            text: what the client gets with them.
            is_last: nothing follows.
        """
        waiting = self._waiting
        for token_id, row in zip(token_ids, rows, strict=True):
            entry = row.get(token_id)
            _append(waiting, token_text(token_id, entry), self._num_decoded, entry, row)
            if self._decoder is not None:
                self._num_decoded += len(self._decoder.step(token_id))
        self._num_given += len(text)
        if is_last:
            waiting.text_offset = [min(o, self._num_given) for o in waiting.text_offset]
        num_sure = sum(offset <= self._num_given for offset in waiting.text_offset)
        self._waiting = _slice(waiting, slice(num_sure, None))
        return _slice(waiting, slice(num_sure))

    def _prompt_offsets(self, text: str, token_ids: Sequence[int]) -> list[int]:
        """Where in `text` each prompt token begins.

        The text may be the client's own, which tokens do not give back exactly: a begin marker
        is not in it, and a tokenizer may normalise. The offsets never pass its end.
        """
        if self._token_text is None:
            return [0] * len(token_ids)
        decoder = IncrementalDecoder(self._token_text, (), skip_special_tokens=False)
        offsets, position = [], 0
        for token_id in token_ids:
            offsets.append(position)
            piece = decoder.step(token_id)
            if text.startswith(piece, position):
                position += len(piece)
            elif text.startswith(piece.lstrip(" "), position):
                position += len(piece.lstrip(" "))
            elif token_id not in self._token_text.special_ids:
                position = min(position + len(piece), len(text))
        return offsets


def _slice(entries: CompletionLogProbs, part: slice) -> CompletionLogProbs:
    return CompletionLogProbs(
        tokens=entries.tokens[part],
        text_offset=entries.text_offset[part],
        token_logprobs=entries.token_logprobs[part],
        top_logprobs=entries.top_logprobs[part],
    )


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
