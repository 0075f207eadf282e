# SPDX-License-Identifier: Apache-2.0
"""Wire types that more than one endpoint uses: sampling fields, stream options, usage.

A request field that is unknown or ill-typed is refused. Fields that OpenAI defines without an
effect on the answer are accepted and ignored; they are listed in `HarmlessFields`.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from vllm.exceptions import VLLMValidationError

# Fields that change the answer elsewhere and are not offered here, with what to do instead.
UNSUPPORTED_FIELDS = {
    "suffix": "text insertion is not offered; put the prompt's end in the prompt",
    "best_of": "it is not offered; pass n and choose among the answers",
    "use_beam_search": "beam search is not offered",
    "chat_template": "templates come from the server only (--chat-template)",
    "functions": "tool calls are not offered in this version",
    "function_call": "tool calls are not offered in this version",
    "guided_json": "pass structured_outputs={'json': ...}",
    "guided_regex": "pass structured_outputs={'regex': ...}",
    "guided_choice": "pass structured_outputs={'choice': ...}",
    "guided_grammar": "pass structured_outputs={'grammar': ...}",
    "truncate_prompt_tokens": "prompts are not cut; shorten the prompt",
}

MAX_DEPTH = 100


def refuse_unsupported(data: Any) -> Any:
    """Drop unsupported fields that are null, refuse those that carry a value."""
    if not isinstance(data, dict):
        return data
    present = UNSUPPORTED_FIELDS.keys() & data.keys()
    for name in sorted(present):
        if data[name] is not None:
            raise VLLMValidationError(
                f"{name}: {UNSUPPORTED_FIELDS[name]}", parameter=name, value=data[name]
            )
    return {k: v for k, v in data.items() if k not in present} if present else data


class RequestModel(BaseModel):
    """A request body: no unknown field, no silent conversion, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return refuse_unsupported(data)


def check_text(value: Any, depth: int = 0) -> None:
    """Refuse strings that are no Unicode, and nesting that later steps could not follow.

    Raises:
        VLLMValidationError: either is found.
    """
    if isinstance(value, str):
        if not value.isascii():
            _check_unicode(value)
        return
    if depth > MAX_DEPTH:
        raise VLLMValidationError(f"the body is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for key, item in value.items():
            check_text(key, depth + 1)
            check_text(item, depth + 1)
    elif isinstance(value, list) and not (value and type(value[0]) is int):
        for item in value:
            check_text(item, depth + 1)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise VLLMValidationError(
            "the body holds a lone surrogate (\\ud800 to \\udfff), which is not text"
        ) from None


class BodyModel(RequestModel):
    """The outermost object of a body, where the whole of it is looked through once."""

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, data: Any) -> Any:
        check_text(data)
        return data


class StreamOptions(RequestModel):
    """What a stream reports besides text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchemaFormat(RequestModel):
    """`response_format.json_schema`; the output always matches, with or without `strict`."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_schema(cls, data: Any) -> Any:
        if isinstance(data, dict) and "schema" in data:
            data = {("schema_" if k == "schema" else k): v for k, v in data.items()}
        return data


class ResponseFormat(RequestModel):
    """The form of the answer: free text, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class HarmlessFields(BodyModel):
    """Fields that OpenAI defines for its own bookkeeping: accepted, without effect here."""

    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class SamplingFields(HarmlessFields):
    """Sampling fields of both completion endpoints; ranges are checked by `SamplingParams`.

    None means "not given": the model's own default applies, then the API's.
    """

    model: str | None = None
    n: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> "SamplingFields":
        if self.stream_options is not None and not self.stream:
            raise VLLMValidationError(
                "stream_options: only a streaming request takes it; pass stream=true",
                parameter="stream_options",
            )
        if self.stream and self.prompt_logprobs is not None:
            raise VLLMValidationError(
                "prompt_logprobs: a stream does not carry it; pass stream=false",
                parameter="prompt_logprobs",
            )
        return self

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def include_continuous_usage(self) -> bool:
        """Whether every chunk reports the usage so far."""
        return self.include_usage and bool(
            self.stream_options is not None and self.stream_options.continuous_usage_stats
        )


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class UsageInfo(BaseModel):
    """Tokens of one request, over all its choices."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class PromptLogprob(BaseModel):
    """One token at one position of the prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobsWire = list[dict[int, PromptLogprob] | None]
