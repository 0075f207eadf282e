# SPDX-License-Identifier: Apache-2.0
"""What is refused in a schema is named by its JSON pointer."""

from typing import Any

import pytest

from tests.v1.structured_output.grammars import make_request, start
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

GOOD_ONE_OF: dict[str, Any] = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
BAD_ONE_OF: dict[str, Any] = {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}

POINTERS: list[tuple[dict[str, Any], str, str]] = [
    ({"type": 5}, "#/type", "string"),
    ({"properties": {"a": {"type": ["string", "wat"]}}}, "#/properties/a/type", "wat"),
    ({"properties": {"a/b~c": {"not": {}}}}, "#/properties/a~1b~0c/not", "not"),
    (
        {"properties": {"not": {"items": {"contains": {"type": "string"}}}}},
        "#/properties/not/items/contains",
        "contains",
    ),
    ({"enum": [{"not": 1}], "anyOf": [{}, {"not": {}}]}, "#/anyOf/1/not", "not"),
    ({"type": "string", "pattern": "foo**"}, "#/pattern", "multiple repeat"),
    (
        {"properties": {"ok": {"pattern": "a+"}, "q": {"type": "string", "pattern": "(?<=a)b"}}},
        "#/properties/q/pattern",
        "look-around",
    ),
    ({"patternProperties": {"(?=a)b": {}}}, "#/patternProperties/(?=a)b", "look-around"),
    ({"$ref": "#/$defs/q"}, "#/$ref", "does not exist"),
    ({"allOf": [{"x-guidance": {"lenient": True}}]}, "#/allOf/0/x-guidance", "not taken"),
    (BAD_ONE_OF, "#/oneOf", "use anyOf"),
    (
        {"properties": {"a": GOOD_ONE_OF, "b": BAD_ONE_OF, "c": BAD_ONE_OF}},
        "#/properties/b/oneOf",
        "",
    ),
    (
        {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"z": BAD_ONE_OF}}]},
        "#/oneOf/1/properties/z/oneOf",
        "",
    ),
    (
        {"$defs": {"n": BAD_ONE_OF, "m": BAD_ONE_OF}, "properties": {"x": {"$ref": "#/$defs/m"}}},
        "#/$defs/m/oneOf",
        "oneOf",
    ),
    ({"$defs": {"n": {"not": {}}}, "properties": {"x": {"not": {}}}}, "#/properties/x/not", "not"),
    ({"items": {"type": "number", "multipleOf": 0}}, "#/items/multipleOf", "multiple"),
    (
        {"properties": {"a": {"type": "string", "minLength": 1}, "b": {"minLength": -1}}},
        "#/properties/b/minLength",
        "got -1",
    ),
    ({"properties": {"a": True, "b": 7}}, "#/properties/b", "object or boolean"),
    ({"items": {"enum": 5}}, "#/items/enum", "array"),
    ({"required": "a"}, "#/required", "array"),
    ({"anyOf": []}, "#/anyOf", "empty"),
]


@pytest.mark.parametrize(("schema", "pointer", "reason"), POINTERS)
def test_the_pointer_of_what_is_refused(
    manager: Any, tokenizer: Any, schema: dict[str, Any], pointer: str, reason: str
) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
    with pytest.raises(VLLMValidationError) as caught:
        manager.validate(params, tokenizer)
    assert f"json at {pointer}:" in str(caught.value)
    assert reason in str(caught.value)


def test_a_schema_that_refers_to_itself_only_is_refused(manager: Any, tokenizer: Any) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json={"$ref": "#"}))
    with pytest.raises(VLLMValidationError, match="no text matches"):
        manager.validate(params, tokenizer)


def test_a_property_may_be_called_like_a_keyword(manager: Any) -> None:
    schema = {"type": "object", "properties": {"not": {"type": "string"}, "x-guidance": {}}}
    start(manager, make_request("p", grammar={"json": schema}))
    manager.clear("p")
