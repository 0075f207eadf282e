# SPDX-License-Identifier: Apache-2.0
"""Wire types of /v1/completions."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator

from vllm.entrypoints.openai.protocol import PromptLogprobsWire, SamplingFields, UsageInfo
from vllm.exceptions import VLLMValidationError

MAX_PROMPTS = 1_024
DEFAULT_MAX_TOKENS = 16

Prompts = list[str] | list[list[int]]


def _refuse(what: str) -> VLLMValidationError:
    return VLLMValidationError(
        f"prompt: {what}; pass a string, a list of strings, a list of token ids or a list of "
        "lists of token ids",
        parameter="prompt",
    )


def _is_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def normalise_prompts(value: Any) -> Prompts:
    """The prompts as one list, whichever of the four forms they came in.

    Raises:
        VLLMValidationError: another form, nothing at all, or too many.
    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise _refuse("not one of its forms")
    if not value:
        raise _refuse("an empty list")
    if all(type(item) is int for item in value):
        value = [value]
    if len(value) > MAX_PROMPTS:
        raise _refuse(f"{len(value)} prompts, at most {MAX_PROMPTS} are taken")
    for index, prompt in enumerate(value):
        _check_prompt(index, prompt)
    if len({type(prompt) for prompt in value}) > 1:
        raise _refuse("strings and token ids mixed")
    prompts: Prompts = value
    return prompts


def _check_prompt(index: int, prompt: Any) -> None:
    if not isinstance(prompt, str | list):
        raise _refuse(f"entry {index} is of type {type(prompt).__name__}")
    if not prompt:
        raise _refuse(f"entry {index} is empty (to begin from nothing, pass the begin token's id)")
    if isinstance(prompt, list) and not all(map(_is_id, prompt)):
        bad = next(item for item in prompt if not _is_id(item))
        raise _refuse(f"entry {index} holds {str(bad)[:40]!r}, which is not a token id")


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions."""

    prompt: Annotated[Prompts, PlainValidator(normalise_prompts)]
    logprobs: int | None = None
    echo: bool | None = False
    add_special_tokens: bool | None = True


class CompletionLogProbs(BaseModel):
    """Parallel lists, one entry per token; `text_offset` counts characters of the choice."""

    text_offset: list[int] = Field(default_factory=list)
    token_logprobs: list[float | None] = Field(default_factory=list)
    tokens: list[str] = Field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = Field(default_factory=list)


class CompletionChoice(BaseModel):
    """One answer, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogProbs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class CompletionResponseChoice(CompletionChoice):
    """One whole answer."""

    prompt_logprobs: PromptLogprobsWire | None = None


class CompletionResponse(BaseModel):
    """Answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionResponseChoice]
    usage: UsageInfo


class CompletionStreamResponse(BaseModel):
    """One chunk of a stream; `usage` is left out of the JSON unless it was asked for."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageInfo | None = None
