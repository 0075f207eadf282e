# SPDX-License-Identifier: Apache-2.0
"""Broken, hostile and unsupported grammars: refused with the reason, within bounds, or harmless."""

import re
import sys
import threading
import time
from typing import Any

import pytest

from tests.v1.structured_output.helpers import (
    allowed_ids,
    make_manager,
    make_request,
    make_tokenizer,
    params_of,
    start,
)
from vllm.config import StructuredOutputsConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager

LIMIT_S = 5.0


def deep_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


UNSUPPORTED_DEEP_INSIDE = {
    "type": "object",
    "properties": {"a/b": {"type": "array", "items": {"unevaluatedProperties": False}}},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "repeated quantifier": ({"regex": "foo**"}, "multiple repeat at position 4"),
    "open class": ({"regex": r"[\x00-"}, "unclosed character class"),
    "look-behind": ({"regex": "(?<=a)b"}, "look-around"),
    "deep groups": ({"regex": "(" * 5000 + "a" + ")" * 5000}, "invalid regex"),
    "unknown property": ({"regex": r"\p{Nope}"}, "property not found"),
    "empty regex": ({"regex": ""}, "empty"),
    "half a surrogate": ({"regex": "a\udc00"}, "surrogate"),
    "huge regex": ({"regex": "a" * 70_000}, "70000 bytes; at most 65536"),
    "empty rule": ({"grammar": "root ::="}, "no text but the empty one"),
    "unknown rule": ({"grammar": "start: x"}, "unknown name"),
    "unknown type": ({"json": {"type": "nope"}}, "#/type"),
    "unknown format": ({"json": {"type": "string", "format": "nope"}}, "#/format"),
    "bad pattern": ({"json": {"items": {"pattern": "(?=a)b"}}}, "#/items/pattern"),
    "unsupported inside": ({"json": UNSUPPORTED_DEEP_INSIDE}, "#/properties/a~1b/items/unevalu"),
    "foreign reference": ({"json": {"$ref": "http://x/y"}}, "#/$ref"),
    "lenient mode": ({"json": {"x-guidance": {"lenient": True}}}, "x-guidance"),
    "nothing satisfies": ({"json": {"type": "integer", "minimum": 5, "maximum": 1}}, "minimum"),
    "not JSON": ({"json": "{"}, "not valid JSON"),
    "not an object": ({"json": "[]"}, "an object"),
    "deep text": ({"json": '{"a":' * 3000 + "1" + "}" * 3000}, "deeper than 64"),
    "huge schema": ({"json": {"enum": ["a" * 70_000]}}, "at most 65536"),
    "no choice": ({"choice": []}, "0 entries"),
    "empty choice": ({"choice": [""]}, "empty"),
    "number as choice": ({"choice": [3]}, "no text"),
    "many choices": ({"choice": ["a"] * 2000}, "2000 entries; pass 1 to 1024"),
    "bad whitespace": ({"json_object": True, "whitespace_pattern": "[ "}, "unclosed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_grammar_is_refused_with_the_reason_and_nothing_of_the_server(name: str) -> None:
    grammar, expected = REFUSED[name]
    started = time.monotonic()
    with pytest.raises(VLLMValidationError) as caught:
        make_manager().validate(params_of(**grammar), make_tokenizer())
    message = str(caught.value)
    assert expected in message
    assert caught.value.parameter == "structured_outputs"
    assert len(message) < 700
    assert not re.search(r"0x[0-9a-f]{6}|\.(rs|py)\b|site-packages|Traceback|/root|/home", message)
    assert time.monotonic() - started < LIMIT_S


def test_a_schema_nested_too_deep_is_refused_before_anyone_walks_it() -> None:
    with pytest.raises(VLLMValidationError, match="deeper than 64 levels"):
        StructuredOutputsParams(json=deep_schema(5000))


def doubling_schema(depth: int) -> dict[str, Any]:
    """As text it would double with each level."""
    defs: dict[str, Any] = {
        f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
        for i in range(depth)
    }
    return {"$defs": defs | {f"d{depth}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def product_schema(count: int) -> dict[str, Any]:
    """Multiplied out it would have 4 to the power of `count` cases."""
    return {
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(4)]}
            for i in range(count)
        ]
    }


@pytest.mark.parametrize(
    "grammar",
    [
        {"regex": "(a{1,1000}){1,1000}"},
        {"regex": "((a{1,100}){1,100}){1,100}"},
        {"regex": "(.*a){50}.{200}"},
        {"regex": "|".join(["a"] * 10_000)},
        {"json": doubling_schema(40)},
        {"json": product_schema(12)},
        {"json": {"type": "string", "maxLength": 10**7}},
        {"json": {"type": "array", "minItems": 100_000}},
        {"grammar": 'start: "a" | start start'},
    ],
    ids=lambda grammar: str(grammar)[:40],
)
def test_an_exponential_grammar_is_refused_or_runs_within_bounds(grammar: dict[str, Any]) -> None:
    manager, request = make_manager(), make_request(**grammar)
    started = time.monotonic()
    try:
        start(manager, request)
    except VLLMValidationError:
        pass
    else:
        for _ in range(20):
            ids = allowed_ids(manager, request)
            if not ids:
                break  # the library gave up; the sampler ends this request alone
            manager.accept_tokens(request, ids[-1:])
    assert time.monotonic() - started < LIMIT_S


def test_a_refusal_is_remembered_and_raised_anew() -> None:
    manager = make_manager()
    caught = []
    for _ in range(2):
        with pytest.raises(VLLMValidationError) as info:
            manager.validate(params_of(regex="(?<=a)b"), make_tokenizer())
        caught.append(info.value)
    assert str(caught[0]) == str(caught[1])
    assert caught[0] is not caught[1]


def test_without_the_grammar_library_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for grammar in ({"regex": "a"}, {"json_object": True}, {"choice": ["a"]}):
        with pytest.raises(VLLMValidationError, match="install llguidance"):
            make_manager().validate(params_of(**grammar), make_tokenizer())


def test_an_engine_without_a_tokenizer_refuses_grammars() -> None:
    with pytest.raises(VLLMValidationError, match="need a tokenizer"):
        make_manager().validate(params_of(regex="a"), None)


def test_a_tokenizer_the_library_cannot_read_is_named_as_the_reason() -> None:
    manager = StructuredOutputManager(100, object, StructuredOutputsConfig())
    with pytest.raises(VLLMValidationError, match="not available for this model"):
        manager.validate(params_of(regex="a"), object())


def test_parameters_without_a_grammar_pass() -> None:
    make_manager().validate(SamplingParams(), None)


def test_is_ready_raises_when_the_compilation_failed() -> None:
    manager, request = make_manager(), make_request(regex="(?<=a)b")
    manager.grammar_init(request)
    with pytest.raises(VLLMValidationError, match="look-around"):
        _wait(manager, request)


class Blocked:
    """A manager whose tokenizer does not come until told: every compilation takes that long."""

    def __init__(self, timeout_s: float) -> None:
        self.gate = threading.Event()
        self.manager = StructuredOutputManager(
            333, self._tokenizer, StructuredOutputsConfig(compile_timeout_s=timeout_s)
        )

    def _tokenizer(self) -> Any:
        self.gate.wait(30)
        return make_tokenizer()


def _wait(manager: StructuredOutputManager, request: Any) -> None:
    deadline = time.monotonic() + 10
    while not manager.is_ready(request):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_is_ready_is_false_while_the_grammar_compiles_and_true_after() -> None:
    blocked, request = Blocked(30.0), make_request(regex="a")
    blocked.manager.grammar_init(request)
    assert not blocked.manager.is_ready(request)
    blocked.gate.set()
    _wait(blocked.manager, request)


def test_is_ready_raises_when_the_compilation_takes_too_long() -> None:
    blocked, request = Blocked(0.05), make_request(regex="a")
    blocked.manager.grammar_init(request)
    with pytest.raises(VLLMValidationError, match=r"longer than 0\.05 s"):
        _wait(blocked.manager, request)
    blocked.gate.set()


def test_validation_that_takes_too_long_is_refused_and_works_later() -> None:
    blocked = Blocked(0.05)
    for i in range(5):  # the later ones wait behind the first two and are taken back
        with pytest.raises(VLLMValidationError, match="longer than"):
            blocked.manager.validate(params_of(regex=f"a{i}"), make_tokenizer())
    blocked.gate.set()
    request = make_request(regex="a4")
    blocked.manager.grammar_init(request)
    time.sleep(0.02)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            blocked.manager.validate(params_of(regex="a4"), make_tokenizer())
            return
        except VLLMValidationError:
            time.sleep(0.01)
    pytest.fail("the manager did not recover")


def test_the_cache_of_grammars_is_bounded() -> None:
    manager = make_manager(cache_size=3)
    for i in range(8):
        manager.validate(params_of(regex=f"a{i}"), make_tokenizer())
    assert len(manager._compiled) == 3
