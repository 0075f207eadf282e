# SPDX-License-Identifier: Apache-2.0
"""`text_offset` is the length of the text before a token, whatever bytes the tokens hold."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detokenizer.utils import TOKENIZERS, byte_tokenizer, spm_tokenizer
from vllm.entrypoints.openai.completion.protocol import CompletionLogProbs
from vllm.entrypoints.openai.logprobs import _BYTES, CompletionLogprobsBuilder, extend
from vllm.logprobs import Logprob, LogprobsOnePosition
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import Detokenizer
from vllm.v1.engine.token_text import TokenText


@dataclass
class Answer:
    """What a client has got: the text, and the entries with it."""

    text: str
    entries: CompletionLogProbs
    token_ids: list[int]


def row(token_id: int) -> LogprobsOnePosition:
    return {token_id: Logprob(-1.0, 1, f"<{token_id}>")}


def answer(
    token_text: TokenText, prompt: list[int], output: list[int], *, cut: int, stop: list[str]
) -> Answer:
    """An output in pieces of `cut` tokens, as the engine would give them out."""
    params = SamplingParams(stop=stop)
    engine = Detokenizer(token_text, params, prompt)
    builder = CompletionLogprobsBuilder(token_text, prompt, skip_special_tokens=True)
    entries, num_sent, num_tokens = CompletionLogProbs(), 0, 0
    for start in range(0, max(len(output), 1), cut):
        piece = output[start : start + cut]
        stopped = engine.update(piece, ended_by_token=False)
        is_last = stopped is not None or start + cut >= len(output)
        if is_last and stopped is None:
            engine.finish()
        new = engine.token_ids[num_tokens:]
        added = builder.add(new, [row(i) for i in new], engine.text[num_sent:], is_last=is_last)
        entries = extend(entries, added)
        num_sent, num_tokens = len(engine.text), len(engine.token_ids)
        # What a stream has said so far stays true.
        assert all(offset <= num_sent for offset in entries.text_offset)
        if is_last:
            break
    return Answer(engine.text, entries, engine.token_ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_offsets_are_lengths_of_the_text_before(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]()
    token_text = TokenText(tokenizer)
    ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=40)
    prompt, output = data.draw(ids), data.draw(ids)
    stop = data.draw(st.lists(st.sampled_from(["a", "he", "\ufffd", "\ufffd\ufffd", "x "])))
    whole = answer(token_text, prompt, output, cut=1000, stop=stop)
    offsets = whole.entries.text_offset
    assert len(offsets) == len(whole.token_ids)
    assert offsets == sorted(offsets)
    for i, offset in enumerate(offsets):
        # Without stop strings: what is settled before the token.
        before = Detokenizer(token_text, SamplingParams(), prompt)
        before.update(whole.token_ids[:i], ended_by_token=False)
        assert offset == min(len(before.text), len(whole.text))
    for cut in (1, 2, 3):
        streamed = answer(token_text, prompt, output, cut=cut, stop=stop)
        assert streamed.text == whole.text
        assert streamed.entries == whole.entries


@pytest.mark.parametrize("cut", [1, 1000])
@pytest.mark.parametrize(
    ("make", "ids", "offsets"),
    [
        (byte_tokenizer, list("aéb".encode()), [0, 1, 1, 2]),
        (byte_tokenizer, [0x61, *[0xFF] * 12, 0x62, 0x62], None),
        (spm_tokenizer, [0x61, *[0xFF] * 12, 0x62, 0x62], None),
        (byte_tokenizer, [0xE6, 0x9D], [0, 0]),
    ],
)
def test_split_and_broken_characters(
    make: Any, ids: list[int], offsets: list[int] | None, cut: int
) -> None:
    tokenizer = make()
    token_ids = [_byte_id(tokenizer, byte) for byte in ids]
    got = answer(TokenText(tokenizer), [], token_ids, cut=cut, stop=[])
    if offsets is not None:
        assert got.entries.text_offset == offsets
    else:
        # Twelve bytes that are no text are twelve marks; the letter after them begins behind.
        assert got.text == "a" + "\ufffd" * 12 + "bb"
        assert got.entries.text_offset[-1] == 14


def _byte_id(tokenizer: Any, byte: int) -> int:
    vocab = tokenizer.get_vocab()
    names = (chr(byte), f"<0x{byte:02X}>") if "<0x00>" in vocab else (_CHARS[byte],)
    return int(next(vocab[name] for name in names if name in vocab))


_CHARS = {byte: char for char, byte in _BYTES.items()}


@pytest.mark.parametrize(
    ("text", "ids", "offsets"),
    [
        ("aéb", [256, *(list("aéb".encode()))], [0, 0, 1, 1, 2]),
        ("zzz", list(b"abcd"), [0, 1, 2, 3]),
        ("a", list(b"abcd"), [0, 1, 1, 1]),
    ],
)
def test_offsets_of_an_echoed_prompt_stay_in_its_text(
    text: str, ids: list[int], offsets: list[int]
) -> None:
    tokenizer = byte_tokenizer()
    token_ids = [i if i > 255 else _byte_id(tokenizer, i) for i in ids]
    builder = CompletionLogprobsBuilder(TokenText(tokenizer), token_ids, skip_special_tokens=True)
    rows = [None, *(row(i) for i in token_ids[1:])]
    assert builder.add_prompt(text, token_ids, rows, "").text_offset == offsets
    (b,) = tokenizer.encode("b", add_special_tokens=False)
    assert builder.add([b], [row(b)], "b", is_last=True).text_offset == [len(text)]
