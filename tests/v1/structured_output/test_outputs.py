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


def test_nothing_is_accepted_after_the_end() -> None:
    manager, request = make_manager(), make_request(regex="a+")
    start(manager, request)
    a = make_tokenizer().encode("a")
    assert manager.accept_tokens(request, [*a, EOS])
    assert manager.is_terminated(request)
    assert not manager.accept_tokens(request, a)


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
