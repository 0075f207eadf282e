# SPDX-License-Identifier: Apache-2.0
"""Wire types of /tokenize and /detokenize."""

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from vllm.entrypoints.openai.chat_completion.protocol import MAX_MESSAGES, ChatMessage
from vllm.entrypoints.openai.protocol import BodyModel
from vllm.exceptions import VLLMValidationError


class TokenizeRequest(BodyModel):
    """Body of POST /tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none"] | None = None
    documents: list[dict[str, str]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_source(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise VLLMValidationError(
                "prompt: pass either prompt or messages, and not both", parameter="prompt"
            )
        return self


class TokenizeResponse(BaseModel):
    """Answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(BodyModel):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: list[int]


class DetokenizeResponse(BaseModel):
    """Answer of POST /detokenize."""

    prompt: str
