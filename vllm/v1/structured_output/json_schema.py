# SPDX-License-Identifier: Apache-2.0
"""JSON schemas: read within limits, walked, and searched for what an error speaks of.

Knows where in a schema its subschemas are, and nothing of how they are enforced.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import MAX_SCHEMA_DEPTH, is_deeper
from vllm.v1.structured_output.regex_syntax import repeated_quantifier

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")


def parse_schema(schema: str | dict[str, Any]) -> dict[str, Any]:
    """The schema as an object of plain JSON, at most `MAX_SCHEMA_DEPTH` levels deep.

    Raises:
        VLLMValidationError: it is no JSON, no object, too deep, or sets the library's options.
    """
    parsed: Any = schema
    if isinstance(schema, str):
        try:
            parsed = json.loads(schema)
        except RecursionError:
            _refuse(f"json nests deeper than {MAX_SCHEMA_DEPTH} levels")
        except ValueError as error:
            _refuse(f"json is not valid JSON: {error}")
    if not isinstance(parsed, dict):
        _refuse(f"json is of type {type(parsed).__name__}; a JSON schema is an object")
    if is_deeper(parsed, MAX_SCHEMA_DEPTH):
        _refuse(f"json nests deeper than {MAX_SCHEMA_DEPTH} levels")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(parsed, allow_nan=False))
    except (TypeError, ValueError) as error:
        _refuse(f"json holds a value that JSON does not have: {error}")
    # The library takes options from this keyword, one of which ignores what it cannot enforce.
    for pointer, node in subschemas(plain):
        if "x-guidance" in node:
            _refuse(f"json at {pointer}/x-guidance: this keyword is not taken; leave it out")
    return plain


def subschemas(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All subschemas that are objects, with their JSON pointers, in order of the document."""
    return ((pointer, node) for pointer, node in _positions(schema) if isinstance(node, dict))


def _positions(schema: Any) -> Iterator[tuple[str, Any]]:
    """All places where a schema belongs, and what is there."""
    pending = [("#", schema)]
    while pending:
        pointer, node = pending.pop()
        yield pointer, node
        children: list[tuple[str, Any]] = []
        for key, value in node.items() if isinstance(node, dict) else ():
            here = f"{pointer}/{_escape(key)}"
            if key in _BY_NAME and isinstance(value, dict):
                children += [(f"{here}/{_escape(name)}", sub) for name, sub in value.items()]
            elif key in _LISTS and isinstance(value, list):
                children += [(f"{here}/{i}", sub) for i, sub in enumerate(value)]
            elif key in _SINGLE:
                children.append((here, value))
        pending.extend(reversed(children))


def check_patterns(schema: dict[str, Any]) -> None:
    """Refuse patterns with one quantifier on another.

    Raises:
        VLLMValidationError: with the pattern's JSON pointer.
    """
    for pointer, pattern in _patterns(schema):
        position = repeated_quantifier(pattern)
        if position is not None:
            _refuse(f"json at {pointer}: multiple repeat at position {position} of the pattern")


def locate(
    schema: dict[str, Any],
    reason: str,
    *,
    is_bad_pattern: Callable[[str], bool],
    reason_of: Callable[[dict[str, Any]], str | None],
) -> str | None:
    """JSON pointer to the keyword that the library's `reason` speaks of, None if unknown.

    Args:
        is_bad_pattern: whether the library refuses a regular expression.
        reason_of: why the library refuses a schema, None if it takes it.
    """
    for pattern, key in _NAMED_VALUES:
        named = re.search(pattern, reason)
        if named:
            return _first_with_value(schema, key, named.group(1))
    if "type must be" in reason:
        return _first(schema, lambda n: "type" if not _is_type(n.get("type", "any")) else None)
    if "schema must be an object or boolean" in reason:
        return next(
            (p for p, node in _positions(schema) if not isinstance(node, dict | bool)), None
        )
    if keys := _named_keywords(reason):
        return _culprit(schema, keys, reason, reason_of)
    if "regex" in reason:
        return next((p for p, pattern in _patterns(schema) if is_bad_pattern(pattern)), None)
    return None


_NAMED_VALUES = (
    (r"Invalid type: (\S+)", "type"),
    (r"Unknown format: (\S+)", "format"),
    (r"Pointer '(\S*)' does not exist", "$ref"),
    (r"Resource '(\S*)' is not present", "$ref"),
)
_NAMED_KEYWORDS = (
    r"for '(\w+)', got",
    r"^(\w+) must be an? ",
    r"(\w+) is empty",
    r"^(\w+) constraints are not supported",
)
_MAX_PROBED_BYTES = 2**23


def _named_keywords(reason: str) -> list[str]:
    unimplemented = re.match(r"Unimplemented keys: (\[.*?\])", reason)
    if unimplemented:
        keys: list[str] = json.loads(unimplemented.group(1))
        return keys
    if "invalid multiple of" in reason:
        return ["multipleOf"]
    for pattern in _NAMED_KEYWORDS:
        named = re.search(pattern, reason)
        if named:
            return [named.group(1)]
    return []


def _culprit(
    schema: dict[str, Any],
    keys: list[str],
    reason: str,
    reason_of: Callable[[dict[str, Any]], str | None],
) -> str | None:
    """The first place with one of `keys` that is refused for `reason` without the others.

    None if it is not found, since a wrong place is worse than none.

    The keyword may also stand where the library takes it, or where nothing refers to it.
    """
    places = [(p, n) for p, n in subschemas(schema) if any(key in n for key in keys)]
    # Each try compiles the schema once; a large one with many places is not worth it.
    is_worth_it = 1 < len(places) <= _MAX_PROBED_BYTES // (len(json.dumps(schema)) + 1)
    for pointer, node in places if is_worth_it else ():
        others = [n for p, n in places if n is not node and not f"{pointer}/".startswith(f"{p}/")]
        got = _reason_without(schema, others, keys, reason_of)
        if got is not None and _core(got) == _core(reason):
            return _pointer_to(pointer, node, keys)
    return _pointer_to(*places[0], keys) if len(places) == 1 else None


def _reason_without(
    schema: dict[str, Any],
    nodes: list[dict[str, Any]],
    keys: list[str],
    reason_of: Callable[[dict[str, Any]], str | None],
) -> str | None:
    """Why `schema` is refused while `nodes` lack `keys`."""
    taken = [(node, {key: node.pop(key) for key in keys if key in node}) for node in nodes]
    try:
        return reason_of(schema)
    finally:
        for node, entries in taken:
            node.update(entries)


def _pointer_to(pointer: str, node: dict[str, Any], keys: list[str]) -> str:
    return f"{pointer}/{_escape(next(key for key in keys if key in node))}"


def _core(reason: str) -> str:
    return reason.partition(" while processing")[0]


def _first(schema: dict[str, Any], key_of: Callable[[dict[str, Any]], str | None]) -> str | None:
    for pointer, node in subschemas(schema):
        key = key_of(node)
        if key is not None:
            return f"{pointer}/{_escape(key)}"
    return None


def _first_with_value(schema: dict[str, Any], key: str, value: str) -> str | None:
    def key_of(node: dict[str, Any]) -> str | None:
        given = node.get(key)
        texts = given if isinstance(given, list) else [given]
        ends = [t for t in texts if isinstance(t, str) and t.removeprefix("#") == value]
        return key if ends else None

    return _first(schema, key_of)


def _patterns(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for pointer, node in subschemas(schema):
        if isinstance(node.get("pattern"), str):
            yield f"{pointer}/pattern", node["pattern"]
        named = node.get("patternProperties")
        for name in named if isinstance(named, dict) else ():
            yield f"{pointer}/patternProperties/{_escape(name)}", name


def _is_type(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(v, str) for v in value)
    )


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _refuse(message: str) -> NoReturn:
    raise VLLMValidationError(f"structured_outputs.{message}", parameter="structured_outputs")
