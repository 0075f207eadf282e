# SPDX-License-Identifier: Apache-2.0
"""Outputs under a grammar are valid whatever the model prefers, and end when they should."""

import json
import random
import re
from typing import Any

import pytest

from tests.v1.structured_output.grammars import (
    END,
    EOS,
    allowed,
    generate,
    ids_of,
    make_manager,
    make_request,
    start,
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["a", "東京", "c\n"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}


def is_person(value: Any) -> bool:
    return (
        list(value) == ["name", "age", "kind", "tags"]
        and len(value["name"]) <= 6
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and value["kind"] in ("a", "東京", "c\n")
        and 1 <= len(value["tags"]) <= 3
        and all(isinstance(tag, bool) for tag in value["tags"])
    )


def outputs(manager: Any, tokenizer: Any, grammar: dict[str, Any], n: int) -> list[str]:
    """Texts of finished outputs of a model that draws evenly."""
    texts = []
    for i in range(n):
        request = start(manager, make_request(f"r{i}", grammar=grammar))
        tokens = generate(manager, request, random.Random(i))
        manager.clear(request.request_id)
        if tokens is not None:
            texts.append(b"".join(token_bytes(tokenizer, t) for t in tokens).decode())
    assert len(texts) > n // 2
    return texts


def token_bytes(tokenizer: Any, token_id: int) -> bytes:
    return bytes(BYTE_OF[c] for c in tokenizer.convert_ids_to_tokens(token_id))


def _byte_of() -> dict[str, int]:
    """Byte-level vocabularies write a printable byte as itself, the others as U+0100 and on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_of()


@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON)], ids=["object", "text"])
def test_a_schema(manager: Any, tokenizer: Any, schema: Any) -> None:
    grammar = {"json": schema, "disable_any_whitespace": True}
    texts = outputs(manager, tokenizer, grammar, 30)
    assert all(is_person(json.loads(text)) for text in texts)
    bare = [re.sub(r'"(\\.|[^"\\])*"', '""', text) for text in texts]
    assert not any(c.isspace() for text in bare for c in text)


def test_white_space_follows_its_pattern(manager: Any, tokenizer: Any) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    grammar = {"json": schema, "whitespace_pattern": "[\\t]{1,2}"}
    texts = outputs(manager, tokenizer, grammar, 30)
    assert all(len(json.loads(text)) == 2 for text in texts)
    assert {c for text in texts for c in text if c.isspace()} == {"\t"}


def test_a_json_object(manager: Any, tokenizer: Any) -> None:
    found = 0
    for i in range(30):
        request = start(manager, make_request("r", grammar={"json_object": True}))
        tokens = generate(manager, request, random.Random(i), max_tokens=60)
        manager.clear("r")
        if tokens is not None:
            text = b"".join(token_bytes(tokenizer, t) for t in tokens).decode()
            assert isinstance(json.loads(text), dict)
            found += 1
    assert found


@pytest.mark.parametrize(
    "regex",
    [
        r"[ab]{2,5}c?",
        r"(foo|ba[rz]){1,3}",
        r"^[0-9]{4}-[0-9][0-9]$",
        r"[東京é😀]{1,4}",
        r"[^\x00-\x7f]{1,3}",
        r"x{0,3}",
        r"a/b\.\"[<s>]",
    ],
)
def test_a_regex_matches_whole_outputs(manager: Any, tokenizer: Any, regex: str) -> None:
    for text in outputs(manager, tokenizer, {"regex": regex}, 30):
        assert re.fullmatch(regex, text), text


def test_a_choice(manager: Any, tokenizer: Any) -> None:
    choice = ["yes", "no", "東京", "😀", 'a "quoted"\n\\text', "</s>", "yes indeed"]
    texts = outputs(manager, tokenizer, {"choice": choice}, 80)
    assert set(texts) == set(choice)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "(" root ")" | item\nitem ::= [0-9] [0-9]?',
        'start: "(" start ")" | item\nitem: /[0-9]{1,2}/',
    ],
    ids=["gbnf", "lark"],
)
def test_a_grammar(manager: Any, tokenizer: Any, grammar: str) -> None:
    for text in outputs(manager, tokenizer, {"grammar": grammar}, 30):
        inner = text.strip("()")
        depth = text.index(inner)
        assert text == "(" * depth + inner + ")" * depth and re.fullmatch(r"\d{1,2}", inner)


def test_a_character_may_be_split_over_tokens(manager: Any, tokenizer: Any) -> None:
    request = start(manager, make_request(grammar={"choice": ["é"]}))
    parts = [
        next(i for i in range(len(tokenizer)) if tokenizer.convert_ids_to_tokens(i) == c)
        for c in "Ã©"
    ]
    for part in parts:
        assert part in allowed(manager, request)
        assert manager.accept_tokens(request, [part])
    assert manager.is_terminated(request)
    manager.clear("r")


def token(tokenizer: Any, text: str) -> int:
    return int(tokenizer.convert_tokens_to_ids(text))


def test_only_stop_tokens_may_follow_a_complete_text(manager: Any, tokenizer: Any) -> None:
    request = start(manager, make_request(grammar={"regex": "ab?"}, stop_token_ids=[END]))
    a, b = token(tokenizer, "a"), token(tokenizer, "b")
    assert allowed(manager, request) == [a]
    assert not manager.accept_tokens(request, [EOS])
    assert manager.accept_tokens(request, [a])
    assert allowed(manager, request) == sorted([b, EOS, END])
    assert not manager.is_terminated(request)
    assert manager.accept_tokens(request, [END])
    assert manager.is_terminated(request)
    assert not manager.accept_tokens(request, [b])
    manager.clear("r")


def test_a_text_that_cannot_go_on_is_terminated(manager: Any, tokenizer: Any) -> None:
    request = start(manager, make_request(grammar={"regex": "ab"}))
    assert manager.accept_tokens(request, [token(tokenizer, "a")])
    assert not manager.is_terminated(request)
    assert manager.accept_tokens(request, [token(tokenizer, "b")])
    assert manager.is_terminated(request)
    assert allowed(manager, request) == [EOS]
    manager.clear("r")


def test_ignore_eos_keeps_an_open_grammar_going(manager: Any, tokenizer: Any) -> None:
    request = start(manager, make_request(grammar={"regex": "a+"}, ignore_eos=True))
    assert manager.accept_tokens(request, [token(tokenizer, "a")])
    assert EOS not in allowed(manager, request)
    manager.clear("r")


def test_a_refused_token_changes_nothing(manager: Any, tokenizer: Any) -> None:
    request = start(manager, make_request(grammar={"regex": "ab"}))
    before = allowed(manager, request)
    assert not manager.accept_tokens(request, [token(tokenizer, "z")])
    assert allowed(manager, request) == before
    manager.clear("r")


def test_requests_with_the_same_grammar_advance_apart(manager: Any, tokenizer: Any) -> None:
    first, second = (start(manager, make_request(i, grammar={"regex": "xyz"})) for i in "12")
    assert manager.accept_tokens(first, [token(tokenizer, "x")])
    output = manager.grammar_bitmask([second, first])
    assert output is not None
    assert output.req_ids == ["2", "1"]
    assert [ids_of(row) for row in output.bitmask] == [
        [token(tokenizer, "x")],
        [token(tokenizer, "y")],
    ]
    manager.clear("1")
    assert allowed(manager, second) == [token(tokenizer, "x")]
    manager.clear("2")


def test_a_grammar_that_breaks_on_the_way_ends_only_its_request(tokenizer: Any) -> None:
    manager = make_manager(tokenizer)
    good = start(manager, make_request("good", grammar={"regex": "a+"}))
    bad = start(manager, make_request("bad", grammar={"regex": "ab"}))
    manager._running["bad"]._matcher.consume_token(token(tokenizer, "z"))  # now in error
    output = manager.grammar_bitmask([bad, good])
    assert output is not None
    assert ids_of(output.bitmask[0]) == []  # which the sampler reports for this row
    assert ids_of(output.bitmask[1]) == [token(tokenizer, "a")]
    assert not manager.is_terminated(bad)
    assert not manager.accept_tokens(bad, [token(tokenizer, "a")])


def test_no_requests_make_no_bitmask(manager: Any) -> None:
    assert manager.grammar_bitmask([]) is None
    manager.clear("unknown")


def test_clearing_a_request_that_compiles_is_fine(tokenizer: Any) -> None:
    manager = make_manager(tokenizer)
    manager.grammar_init(make_request("r", grammar={"regex": "[a-z]{1,300}"}))
    manager.clear("r")
    assert allowed(manager, start(manager, make_request("r", grammar={"regex": "q"})))
