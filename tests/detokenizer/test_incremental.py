# SPDX-License-Identifier: Apache-2.0
"""The joined stream is the decoded whole, whatever the tokenizer and the tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detokenizer.utils import TOKENIZERS, byte_tokenizer, spm_tokenizer
from vllm.v1.engine.detokenizer import IncrementalDecoder
from vllm.v1.engine.token_text import TokenText


def stream(text: TokenText, prompt: list[int], output: list[int], *, skip: bool) -> list[str]:
    """The pieces as they come; the last one is what was held back."""
    decoder = IncrementalDecoder(text, prompt, skip_special_tokens=skip)
    pieces = [decoder.step(token_id) for token_id in output]
    return [*pieces, decoder.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_joined_pieces_are_the_decoded_whole(name: str, skip: bool, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]()
    text = TokenText(tokenizer)
    ids = st.integers(0, len(tokenizer) - 1)
    output = data.draw(st.lists(ids, max_size=80))
    whole = tokenizer.decode(output, skip_special_tokens=skip)
    assert "".join(stream(text, [], output, skip=skip)) == whole


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_output_continues_the_prompt(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]()
    text = TokenText(tokenizer)
    # An ordinary token ends the prompt, so that its own text is settled.
    (end,) = tokenizer.encode("a", add_special_tokens=False)[-1:]
    prompt = [*data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=20)), end]
    output = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=40))
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    whole = tokenizer.decode([*prompt, *output], skip_special_tokens=True)
    assert before + "".join(stream(text, prompt, output, skip=True)) == whole


@pytest.mark.parametrize("make", [byte_tokenizer, spm_tokenizer])
@pytest.mark.parametrize(
    "said", ["👍🏽 fine", "e\u0301", "東京, здравствуй", "a\ufffdb", "👩‍👩‍👧‍👦"]
)
def test_characters_of_several_tokens_come_whole(make, said: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(said, add_special_tokens=False)
    pieces = stream(TokenText(tokenizer), [], ids, skip=True)
    assert "".join(pieces) == said
    if "\ufffd" not in said:
        assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_is_given_out_with_its_last_byte() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("é!", add_special_tokens=False)
    assert stream(TokenText(tokenizer), [], ids, skip=True) == ["", "é", "!", ""]


def test_an_unfinished_character_shows_as_a_mark_at_the_end() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("ok東", add_special_tokens=False)[:-1]
    pieces = stream(TokenText(tokenizer), [], ids, skip=True)
    assert pieces[:-1] == ["o", "k", "", ""]
    assert pieces[-1] == "\ufffd"


def test_leading_space_of_the_output_is_kept_after_a_prompt() -> None:
    tokenizer = spm_tokenizer()
    hello = tokenizer.convert_tokens_to_ids("▁hello")
    prompt = tokenizer.encode("the", add_special_tokens=False)
    assert "".join(stream(TokenText(tokenizer), prompt, [hello], skip=True)) == " hello"


def test_a_long_output_decodes_a_bounded_window() -> None:
    tokenizer = byte_tokenizer()
    text = TokenText(tokenizer)
    longest = 0
    decode = text.decode

    def spy(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    text.decode = spy  # type: ignore[method-assign]
    ids = tokenizer.encode("the quick brown fox é 東 " * 40, add_special_tokens=False)
    assert "".join(stream(text, [], ids, skip=True)) == "the quick brown fox é 東 " * 40
    assert longest < 40


@pytest.mark.parametrize("make", [byte_tokenizer, spm_tokenizer])
@pytest.mark.parametrize("head", ["", "ok ", "the 東"])
def test_bytes_that_are_no_text_are_given_out_at_once(make, head: str) -> None:
    tokenizer = make()
    text = TokenText(tokenizer)
    decode, longest = text.decode, 0

    def spy(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    text.decode = spy  # type: ignore[method-assign]
    (junk,) = {i for t in ("ÿ", "<0xFF>") if (i := tokenizer.get_vocab().get(t)) is not None}
    ids = tokenizer.encode(head, add_special_tokens=False) + [junk] * 200
    ids += tokenizer.encode("the 東", add_special_tokens=False)
    *pieces, rest = stream(text, [], ids, skip=True)
    assert "".join([*pieces, rest]) == tokenizer.decode(ids)
    assert "".join(pieces[:150]).count("\ufffd") >= 100
    assert longest < 40


@given(data=st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", ["byte", "spm"])
def test_long_runs_of_bytes_are_as_the_decoder_has_them(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]()
    said = ["東京👍🏽", "é\ufffd", "a", "the "]
    chunks = [tokenizer.encode(s, add_special_tokens=False) for s in said]
    junk = ("ÿ", "Ģ", "æ", "<0xFF>", "<0x80>", "<0xE6>")
    alphabet = {i for t in junk if (i := tokenizer.get_vocab().get(t)) is not None}
    chunks += [[i] for i in sorted(alphabet)] + [[i] * 30 for i in sorted(alphabet)]
    output = [i for c in data.draw(st.lists(st.sampled_from(chunks), max_size=25)) for i in c]
    joined = "".join(stream(TokenText(tokenizer), [], output, skip=True))
    assert joined == tokenizer.decode(output)


def test_pieces_of_single_tokens_keep_their_space() -> None:
    tokenizer = spm_tokenizer()
    text = TokenText(tokenizer)
    assert text.piece(tokenizer.convert_tokens_to_ids("▁the")) == " the"
    assert text.piece(tokenizer.convert_tokens_to_ids("he")) == "he"
    assert text.piece(tokenizer.eos_token_id) == "</s>"


@pytest.mark.parametrize("make", [byte_tokenizer, spm_tokenizer])
@pytest.mark.parametrize("said", ["a東b", "x👍🏽", "éé"])
def test_pieces_in_context_join_to_the_text(make, said: str) -> None:
    tokenizer = make()
    text = TokenText(tokenizer)
    ids = tokenizer.encode("a " + said, add_special_tokens=False)
    pieces = [text.piece_in_context(ids[max(0, i - 8) : i], ids[i]) for i in range(len(ids))]
    assert "".join(pieces).lstrip() == "a " + said
