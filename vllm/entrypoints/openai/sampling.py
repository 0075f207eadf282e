# SPDX-License-Identifier: Apache-2.0
"""From request fields to `SamplingParams`.

Order of precedence: what the request says, what the model's generation config says, what the
API says. A field that is null counts as not given.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from vllm.entrypoints.openai.protocol import SamplingFields
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

_COPIED = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "allowed_token_ids",
    "bad_words",
)


def to_sampling_params(
    request: SamplingFields,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Sampling parameters of `request`.

    Args:
        defaults: sampling fields from the model's generation config.
        max_tokens: resolved by the endpoint, whose defaults differ.
        logprobs: likewise; the endpoints spell it differently.

    Raises:
        VLLMValidationError: a value is out of range, or two fields contradict each other.
    """
    fields = {k: v for k, v in defaults.items() if k in _COPIED}
    for name in _COPIED:
        value = getattr(request, name)
        if value is not None:
            fields[name] = value
    return SamplingParams(
        **fields,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(request.logit_bias),
        structured_outputs=_structured_outputs(request),
        output_kind=RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY,
    )


def default_max_tokens(
    request: SamplingFields, defaults: Mapping[str, Any], room: int, *, api_default: int | None
) -> int | None:
    """`max_tokens` of a request that gives none: the model's default, else the API's.

    A default is no demand: it yields to the room that is left.

    Args:
        defaults: sampling fields from the model's generation config.
        room: tokens that the context leaves for the output.
        api_default: None is all the room there is.
    """
    default: int | None = defaults.get("max_tokens", api_default)
    if default is None:
        return None
    min_tokens = request.min_tokens
    if min_tokens is None:
        min_tokens = int(defaults.get("min_tokens", 0))
    return max(min(default, max(1, room)), min_tokens)


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    result: dict[int, float] = {}
    for key, value in bias.items():
        # Token ids are short; the bound keeps a huge number from being parsed.
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise VLLMValidationError(
                f"logit_bias: key {key[:40]!r} is not a token id; pass a non-negative integer",
                parameter="logit_bias",
                value=key,
            )
        result[int(key)] = value
    return result


def _structured_outputs(request: SamplingFields) -> StructuredOutputsParams | None:
    from_format = _from_response_format(request)
    given = request.structured_outputs
    if given is None:
        return from_format
    if from_format is not None:
        raise VLLMValidationError(
            "structured_outputs and response_format both constrain the answer; pass one of them",
            parameter="structured_outputs",
        )
    known = StructuredOutputsParams.__struct_fields__
    for name in given:
        if name not in known:
            raise VLLMValidationError(
                f"structured_outputs.{name[:60]}: no such field; known are {', '.join(known)}",
                parameter="structured_outputs",
            )
    try:
        return msgspec.convert(given, StructuredOutputsParams)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(cause, VLLMValidationError):
            raise cause from None
        raise VLLMValidationError(
            f"structured_outputs: {error}", parameter="structured_outputs"
        ) from None


def _from_response_format(request: SamplingFields) -> StructuredOutputsParams | None:
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return StructuredOutputsParams(json_object=True)
    schema = wanted.json_schema.schema_ if wanted.json_schema is not None else None
    if schema is None:
        raise VLLMValidationError(
            "response_format: type json_schema needs json_schema.schema, a JSON schema",
            parameter="response_format",
        )
    return StructuredOutputsParams(json=schema)
