# SPDX-License-Identifier: Apache-2.0
"""From chat messages to token ids, the same for chat completions and /tokenize."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatMessage
from vllm.entrypoints.openai.serving import OpenAIServing
from vllm.exceptions import VLLMValidationError
from vllm.tokenizers.encoding import check_text_can_fit, run_tokenizer


@dataclass(frozen=True, slots=True)
class ChatPromptOptions:
    """What shapes the prompt besides the messages."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, str]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


async def render_chat_prompt(
    serving: OpenAIServing, messages: Sequence[ChatMessage], options: ChatPromptOptions
) -> list[int]:
    """Token ids of the conversation.

    Raises:
        VLLMValidationError: the template refuses the messages, or there is no tokenizer.
    """
    from vllm.entrypoints.chat_utils import render_chat

    if options.add_special_tokens:
        raise VLLMValidationError(
            "add_special_tokens: the chat template writes the special tokens itself; leave it out",
            parameter="add_special_tokens",
        )
    tokenizer = await serving.engine.get_tokenizer()
    if tokenizer is None:
        raise VLLMValidationError(
            "messages: this server runs without a tokenizer; use /v1/completions with token ids",
            parameter="messages",
        )
    plain = [message.model_dump(exclude_none=True) for message in messages]

    def run() -> list[int]:
        return list(
            render_chat(
                tokenizer,
                plain,
                chat_template=serving.engine.model_config.chat_template,
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                tools=options.tools,
                documents=options.documents,
                chat_template_kwargs=options.chat_template_kwargs,
            )
        )

    size = sum(len(str(message.content)) for message in messages)
    check_text_can_fit(tokenizer, size, serving.max_model_len)
    return await run_tokenizer(run, size=size)
