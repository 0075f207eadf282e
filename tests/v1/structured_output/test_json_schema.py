# SPDX-License-Identifier: Apache-2.0
"""What is refused in a schema is named by its JSON pointer."""

from typing import Any

import pytest

from tests.v1.structured_output.grammars import make_request, start
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

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
