# SPDX-License-Identifier: Apache-2.0
"""Stop strings are found whatever the cut, and nothing of them is given out before."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.detokenizer.utils import byte_tokenizer, piece_tokenizer
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import Detokenizer, StopStrings
from vllm.v1.engine.token_text import TokenText


def run(pieces: list[str], stop: list[str], *, include: bool = False) -> tuple[str, str | None]:
    """Text given out and the match, of a stream cut into `pieces`."""
    finder = StopStrings(stop, include_in_output=include)
    out = ""
    for piece in pieces:
        text, match = finder.feed(piece)
        out += text
        if match is not None:
            return out, match
    return out + finder.flush(), None


@given(
    text=st.text("abc", max_size=30),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.sets(st.integers(1, 29)),
    include=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_the_cut_does_not_matter(text, stop, cuts, include) -> None:
    bounds = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    by_char = run(list(text), stop, include=include)
    assert run(pieces, stop, include=include) == by_char
    ends = [i for i in range(len(text) + 1) if any(text[:i].endswith(s) for s in stop)]
    if not ends:
        assert by_char == (text, None)
        return
    match = max((s for s in stop if text[: ends[0]].endswith(s)), key=len)
    kept = ends[0] if include else ends[0] - len(match)
    assert by_char == (text[:kept], match)


@given(text=st.text("abcd", max_size=40), stop=st.text("abc", min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_no_more_is_held_back_than_could_match(text: str, stop: str) -> None:
    finder = StopStrings([stop], include_in_output=False)
    out = ""
    for i, char in enumerate(text, 1):
        given_out, match = finder.feed(char)
        out += given_out
        if match is not None:
            return
        held = text[len(out) : i]
        assert stop.startswith(held)
        assert len(held) < len(stop)


def test_text_held_back_is_flushed_when_the_match_fails() -> None:
    assert run(["DE", "F", "GX"], ["DEFGH"]) == ("DEFGX", None)
    assert run(["DE", "F"], ["DEFGH"]) == ("DEF", None)


def detokenize(
    pieces: list[str], said: list[str], params: SamplingParams
) -> tuple[list[str], str | None, list[int]]:
    """Text after each token, the match, and the token ids kept."""
    tokenizer = piece_tokenizer(*pieces)
    detokenizer = Detokenizer(TokenText(tokenizer), params, [])
    texts = []
    for piece in said:
        stop = detokenizer.update([tokenizer.convert_tokens_to_ids(piece)], ended_by_token=False)
        texts.append(detokenizer.text)
        if stop is not None:
            return texts, stop, detokenizer.token_ids
    detokenizer.finish()
    return [*texts, detokenizer.text], None, detokenizer.token_ids


SCRIPT = ["A", "B", "C", "DEF", "G", "HI", "J"]


def test_a_stop_string_over_several_tokens_is_never_sent() -> None:
    texts, stop, ids = detokenize(SCRIPT, SCRIPT, SamplingParams(stop=["DEFGHIJ"]))
    assert texts == ["A", "AB", "ABC", "ABC", "ABC", "ABC", "ABC"]
    assert (stop, len(ids)) == ("DEFGHIJ", 7)


def test_a_stop_string_inside_a_token_cuts_its_text() -> None:
    texts, stop, ids = detokenize(SCRIPT, SCRIPT, SamplingParams(stop=["E"]))
    assert (texts[-1], stop, len(ids)) == ("ABCD", "E", 4)
    texts, stop, _ = detokenize(
        SCRIPT, SCRIPT, SamplingParams(stop=["E"], include_stop_str_in_output=True)
    )
    assert (texts[-1], stop) == ("ABCDE", "E")


def test_a_stop_string_counts_only_after_min_tokens() -> None:
    params = SamplingParams(stop=["B"], min_tokens=2)
    texts, stop, _ = detokenize(SCRIPT, ["A", "B", "C", "B", "C"], params)
    assert (texts[-1], stop) == ("ABC", "B")


def test_a_stop_string_at_the_very_start_leaves_no_text() -> None:
    texts, stop, _ = detokenize(SCRIPT, ["A"], SamplingParams(stop=["A"]))
    assert (texts, stop) == ([""], "A")


def test_a_long_stop_string_that_never_begins_delays_nothing() -> None:
    texts, stop, _ = detokenize(SCRIPT, SCRIPT, SamplingParams(stop=["never to be seen"]))
    assert stop is None
    assert [len(b) > len(a) for a, b in pairwise(texts[:-1])] == [True] * 6


def test_tokens_after_a_match_are_dropped() -> None:
    tokenizer = piece_tokenizer(*SCRIPT)
    detokenizer = Detokenizer(TokenText(tokenizer), SamplingParams(stop=["C"]), [])
    assert detokenizer.update([0, 1, 2, 3, 4], ended_by_token=False) == "C"
    assert (detokenizer.text, detokenizer.token_ids) == ("AB", [0, 1, 2])


@pytest.mark.parametrize(("include", "text"), [(False, "AB"), (True, "ABC")])
def test_the_text_of_a_stop_token_is_left_out_unless_asked_for(include: bool, text: str) -> None:
    params = SamplingParams(include_stop_str_in_output=include)
    detokenizer = Detokenizer(TokenText(piece_tokenizer(*SCRIPT)), params, [])
    detokenizer.update([0, 1, 2], ended_by_token=True)
    detokenizer.finish()
    assert (detokenizer.text, detokenizer.token_ids) == (text, [0, 1, 2])


def test_a_stop_string_of_split_characters_is_found() -> None:
    tokenizer = byte_tokenizer()
    detokenizer = Detokenizer(TokenText(tokenizer), SamplingParams(stop=["京"]), [])
    ids = tokenizer.encode("東京都", add_special_tokens=False)
    assert detokenizer.update(ids, ended_by_token=False) == "京"
    assert (detokenizer.text, detokenizer.token_ids) == ("東", ids[:6])


def test_no_text_without_detokenize() -> None:
    detokenizer = Detokenizer(
        TokenText(piece_tokenizer(*SCRIPT)), SamplingParams(detokenize=False), []
    )
    detokenizer.update([0, 1], ended_by_token=False)
    detokenizer.finish()
    assert (detokenizer.text, detokenizer.token_ids) == ("", [0, 1])
