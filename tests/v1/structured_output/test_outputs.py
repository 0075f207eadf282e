# SPDX-License-Identifier: Apache-2.0
"""Whatever is drawn under a grammar is an output the grammar describes."""

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from tests.v1.structured_output.helpers import (
    EOS,
    NUM_TOKENS,
    VOCAB_SIZE,
    allowed_ids,
    make_manager,
    make_request,
    make_tokenizer,
    random_output,
    start,
)

SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "n": {"type": "integer", "minimum": -5, "maximum": 300},
            "flag": {"type": "boolean"},
        },
        "required": ["name", "n"],
        "additionalProperties": False,
    },
    "enum": {"enum": ["é", "日本", 3, None, [1, {"a": "b"}]]},
    "array": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    "pattern": {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]+$", "maxLength": 12},
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
                "additionalProperties": False,
            }
        },
    },
}


def outputs(count: int, **grammar: Any) -> list[str]:
    """Complete outputs, each from its own request of one manager."""
    manager = make_manager()
    rng = np.random.default_rng(0)
    texts = []
    for i in range(count):
        request = make_request(f"r{i}", **grammar)
        start(manager, request)
        texts.append(random_output(manager, request, rng))
        manager.clear(request.request_id)
    complete = [text for text in texts if text is not None]
    assert len(complete) >= count // 2, "too few outputs came to an end"
    return complete


@pytest.mark.parametrize("name", SCHEMAS)
def test_outputs_under_a_schema_are_valid_instances(name: str) -> None:
    for text in outputs(12, json=SCHEMAS[name]):
        jsonschema.validate(json.loads(text), SCHEMAS[name])


def test_a_schema_as_text_means_the_same_as_the_object() -> None:
    schema = SCHEMAS["object"]
    assert outputs(4, json=json.dumps(schema)) == outputs(4, json=schema)


def test_json_object_gives_objects() -> None:
    for text in outputs(12, json_object=True):
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("kind", [{"json": SCHEMAS["object"]}, {"json_object": True}])
def test_without_whitespace_there_is_none_between_json_tokens(kind: dict[str, Any]) -> None:
    for text in outputs(8, disable_any_whitespace=True, **kind):
        outside = re.sub(r'"(\\.|[^"\\])*"', '""', text)
        assert not re.search(r"\s", outside), text


def test_a_whitespace_pattern_is_kept() -> None:
    for text in outputs(8, json=SCHEMAS["object"], whitespace_pattern="[ ]?"):
        outside = re.sub(r'"(\\.|[^"\\])*"', '""', text)
        assert not re.search(r"[\n\t]|  ", outside), text


@pytest.mark.parametrize("regex", [r"[a-c]{3}x?", r"(foo|bär)\d{1,2}", r"[日本語]{2}", r"[^a]{3}"])
def test_outputs_under_a_regex_match_it_in_full(regex: str) -> None:
    for text in outputs(12, regex=regex):
        assert re.fullmatch(regex, text, re.DOTALL), text


def test_outputs_under_a_choice_are_one_of_the_texts() -> None:
    choices = ["yes", "no", "nope", 'a "quoted" \\ line\n', "🙂🙃", "/x/", "\x01"]
    assert set(outputs(60, choice=choices)) == set(choices)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "[" (item ("," item)*)? "]"\nitem: /[0-9]+/ | "x"',
        'root ::= "[" (item ("," item)*)? "]"\nitem ::= [0-9]+ | "x"',
    ],
    ids=["lark", "gbnf"],
)
def test_outputs_under_a_grammar_are_in_its_language(grammar: str) -> None:
    for text in outputs(12, grammar=grammar):
        assert re.fullmatch(r"\[((\d+|x)(,(\d+|x))*)?\]", text), text


def test_a_character_may_be_split_over_tokens() -> None:
    manager, request = make_manager(), make_request(choice=["é"])
    start(manager, request)
    ids = make_tokenizer().encode("é")
    assert len(ids) == 2
    assert allowed_ids(manager, request) == ids[:1]
    assert manager.accept_tokens(request, ids)
    assert allowed_ids(manager, request) == [EOS] or manager.is_terminated(request)


def test_ids_the_tokenizer_lacks_are_never_allowed() -> None:
    manager, request = make_manager(), make_request(regex=r"(.|\n)*")
    start(manager, request)
    assert NUM_TOKENS < VOCAB_SIZE
    assert max(allowed_ids(manager, request)) < NUM_TOKENS


@pytest.mark.parametrize("vocab_size", [NUM_TOKENS - 7, 288, NUM_TOKENS])
def test_a_vocabulary_shorter_than_the_tokenizer_cuts_it(vocab_size: int) -> None:
    manager, request = make_manager(vocab_size), make_request(regex=r"(.|\n)*")
    start(manager, request)
    assert max(allowed_ids(manager, request)) < vocab_size


def test_only_the_requests_own_stop_tokens_may_end_a_complete_text() -> None:
    manager, request = make_manager(), make_request(regex="a+")
    request.stop_token_ids = {7, 10_000}  # one past the vocabulary is passed over
    start(manager, request)
    a = make_tokenizer().encode("a")
    assert allowed_ids(manager, request) == a
    manager.accept_tokens(request, a)
    assert allowed_ids(manager, request) == sorted([7, *a])


def test_a_token_that_is_not_allowed_is_refused() -> None:
    manager, request = make_manager(), make_request(choice=["yes"])
    start(manager, request)
    assert not manager.accept_tokens(request, make_tokenizer().encode("n"))


def test_nothing_is_accepted_after_the_end() -> None:
    manager, request = make_manager(), make_request(regex="a+")
    start(manager, request)
    a = make_tokenizer().encode("a")
    assert manager.accept_tokens(request, [*a, EOS])
    assert manager.is_terminated(request)
    assert not manager.accept_tokens(request, a)


def test_requests_with_one_grammar_advance_apart() -> None:
    manager = make_manager()
    first, second = make_request("a", choice=["xy"]), make_request("b", choice=["xy"])
    start(manager, first)
    start(manager, second)
    x, y = make_tokenizer().encode("x"), make_tokenizer().encode("y")
    assert manager.accept_tokens(first, x)
    output = manager.grammar_bitmask([second, first])
    assert output is not None and output.req_ids == ["b", "a"]
    bits = np.unpackbits(output.bitmask.view(np.uint8), axis=1, bitorder="little")
    assert [np.nonzero(row)[0].tolist() for row in bits] == [x, y]


def test_a_preempted_request_goes_on_where_its_grammar_was() -> None:
    manager, request = make_manager(), make_request(choice=["xy"])
    start(manager, request)
    assert manager.accept_tokens(request, make_tokenizer().encode("x"))
    assert manager.is_ready(request)  # asked again on the way back from preemption
    assert allowed_ids(manager, request) == make_tokenizer().encode("y")


def test_a_cleared_request_starts_anew() -> None:
    manager, request = make_manager(), make_request(choice=["xy"])
    start(manager, request)
    assert manager.accept_tokens(request, make_tokenizer().encode("x"))
    manager.clear(request.request_id)
    manager.clear(request.request_id)
    start(manager, request)
    assert allowed_ids(manager, request) == make_tokenizer().encode("x")


def test_no_requests_need_no_bitmask() -> None:
    assert make_manager().grammar_bitmask([]) is None
