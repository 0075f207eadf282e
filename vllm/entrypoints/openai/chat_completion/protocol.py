# SPDX-License-Identifier: Apache-2.0
"""Wire types of /v1/chat/completions."""

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator
from typing_extensions import TypedDict

from vllm.entrypoints.openai.protocol import (
    PromptLogprobsWire,
    RequestModel,
    SamplingFields,
    UsageInfo,
)
from vllm.exceptions import VLLMValidationError

MAX_MESSAGES = 4_096


class ChatMessage(RequestModel):
    """One turn. Content is text, or a list of text parts; nothing else is offered."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


class ChatCompletionRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = False
    documents: list[dict[str, str]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _bound_messages(cls, data: Any) -> Any:
        # Checked before the list is parsed: a million messages should cost nothing.
        messages = data.get("messages") if isinstance(data, dict) else None
        if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
            raise VLLMValidationError(
                f"messages: {len(messages)} messages; pass at most {MAX_MESSAGES}",
                parameter="messages",
            )
        return data

    @model_validator(mode="after")
    def _check_pairs(self) -> "ChatCompletionRequest":
        self._check_tools()
        if self.top_logprobs is not None and not self.logprobs:
            raise VLLMValidationError("top_logprobs: needs logprobs=true", parameter="top_logprobs")
        if self.top_logprobs is not None and self.top_logprobs < -1:
            raise VLLMValidationError(
                f"top_logprobs={self.top_logprobs}: pass -1 or more", parameter="top_logprobs"
            )
        if self.continue_final_message and self.add_generation_prompt:
            if "add_generation_prompt" in self.model_fields_set:
                raise VLLMValidationError(
                    "continue_final_message and add_generation_prompt exclude each other; set one",
                    parameter="continue_final_message",
                )
            self.add_generation_prompt = False
        return self

    def _check_tools(self) -> None:
        if self.tool_choice not in (None, "none") and not (
            self.tool_choice == "auto" and not self.tools
        ):
            raise VLLMValidationError(
                "tool_choice: this version parses no tool calls; pass 'none' or leave it out",
                parameter="tool_choice",
            )
        if self.tools and self.tool_choice != "none":
            raise VLLMValidationError(
                "tools: this version parses no tool calls; leave tools out or pass "
                "tool_choice='none'",
                parameter="tools",
            )

    @property
    def num_logprobs(self) -> int | None:
        """How many logprobs the engine should return; None for none."""
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatCompletionLogProb(BaseModel):
    """One candidate token."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class ChatCompletionLogProbsContent(ChatCompletionLogProb):
    """One token of the answer and its likeliest alternatives."""

    top_logprobs: list[ChatCompletionLogProb] = Field(default_factory=list)


class ChatCompletionLogProbs(BaseModel):
    """Logprobs of the answer's tokens."""

    content: list[ChatCompletionLogProbsContent] | None = None


class ChatAnswer(BaseModel):
    """The assistant's turn."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


class ChatCompletionResponseChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatAnswer
    logprobs: ChatCompletionLogProbs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletionResponse(BaseModel):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: UsageInfo
    prompt_logprobs: PromptLogprobsWire | None = None


class DeltaMessage(TypedDict, total=False):
    """What a chunk adds; a key that is absent adds nothing."""

    role: str
    content: str


class ChatCompletionStreamChoice(BaseModel):
    """What a chunk adds to one answer."""

    index: int
    delta: DeltaMessage
    logprobs: ChatCompletionLogProbs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ChatCompletionStreamResponse(BaseModel):
    """One chunk of a stream; `usage` is left out of the JSON unless it was asked for."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatCompletionStreamChoice]
    usage: UsageInfo | None = None
