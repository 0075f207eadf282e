# SPDX-License-Identifier: Apache-2.0
"""From `StructuredOutputsParams` to the text of a grammar, within the configured limits.

Everything a client can get wrong before the grammar library sees it is judged here.
"""

import json
from typing import Any, NoReturn

from vllm.config import StructuredOutputsConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output import guidance
from vllm.v1.structured_output.json_schema import check_patterns, parse_schema
from vllm.v1.structured_output.regex_syntax import repeated_quantifier


def build_grammar(params: StructuredOutputsParams, config: StructuredOutputsConfig) -> str:
    """The grammar's text.

    Raises:
        VLLMValidationError: too large, too deep, or broken.
    """
    if params.json is not None:
        return _json_schema(params.json, params, config)
    if params.json_object:
        return guidance.json_schema_grammar('{"type": "object"}', _whitespace(params))
    if params.regex is not None:
        _check_size("regex", params.regex, config)
        _check_regex("regex", params.regex)
        return _convert("regex", params.regex)
    if params.choice is not None:
        return _choice(params.choice, config)
    assert params.grammar is not None, "StructuredOutputsParams has exactly one kind"
    _check_size("grammar", params.grammar, config)
    return _convert("grammar", params.grammar)


def _refuse(message: str) -> NoReturn:
    raise VLLMValidationError(f"structured_outputs.{message}", parameter="structured_outputs")


def _check_size(kind: str, text: str, config: StructuredOutputsConfig) -> None:
    if not isinstance(text, str) or not text:
        _refuse(f"{kind} is {'empty' if text == '' else 'no text'}; pass a non-empty string")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        _refuse(f"{kind} holds half of a surrogate pair; pass text that is valid Unicode")
    if size > config.max_spec_bytes:
        _refuse(f"{kind} has {size} bytes; at most {config.max_spec_bytes} are taken")


def _json_schema(
    schema: str | dict[str, Any], params: StructuredOutputsParams, config: StructuredOutputsConfig
) -> str:
    if isinstance(schema, str):
        _check_size("json", schema, config)
    parsed = parse_schema(schema)
    text = json.dumps(parsed)
    _check_size("json", text, config)
    check_patterns(parsed)
    return guidance.json_schema_grammar(text, _whitespace(params))


def _check_regex(kind: str, pattern: str) -> None:
    # The grammar library reads "a**" as (a*)*; whoever writes it meant something else.
    position = repeated_quantifier(pattern)
    if position is not None:
        _refuse(
            f"{kind}: multiple repeat at position {position}; escape the second quantifier or put "
            "the first in a group"
        )


def _choice(choices: list[str], config: StructuredOutputsConfig) -> str:
    if not choices or len(choices) > config.max_choices:
        _refuse(f"choice has {len(choices)} entries; pass 1 to {config.max_choices}")
    for choice in choices:
        _check_size("choice", choice, config)
    if sum(len(choice.encode()) for choice in choices) > config.max_spec_bytes:
        _refuse(f"choice is too large; its texts may have {config.max_spec_bytes} bytes in all")
    return guidance.choice_grammar(choices)


def _whitespace(params: StructuredOutputsParams) -> dict[str, Any]:
    defaults: dict[str, Any] = {"whitespace_flexible": not params.disable_any_whitespace}
    if params.whitespace_pattern is not None:
        _check_regex("whitespace_pattern", params.whitespace_pattern)
        defaults["whitespace_pattern"] = params.whitespace_pattern
    return defaults


def _convert(kind: str, text: str) -> str:
    try:
        return guidance.grammar_of(kind, text)
    except (ValueError, TypeError, RecursionError) as error:
        _refuse(f"{kind}: {guidance.readable(str(error))}")
