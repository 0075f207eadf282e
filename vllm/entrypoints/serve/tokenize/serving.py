# SPDX-License-Identifier: Apache-2.0
"""Answers /tokenize and /detokenize with the ids that the engine itself would use."""

from vllm.entrypoints.openai.chat_completion.rendering import (
    ChatPromptOptions,
    render_chat_prompt,
)
from vllm.entrypoints.openai.serving import OpenAIServing
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from vllm.exceptions import VLLMValidationError
from vllm.tokenizers.encoding import run_tokenizer


class OpenAIServingTokenization(OpenAIServing):
    """Serves /tokenize and /detokenize."""

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Token ids of a text or a conversation."""
        self.check_model(request.model)
        if request.messages is not None:
            options = ChatPromptOptions(
                add_generation_prompt=request.add_generation_prompt is not False
                and not request.continue_final_message,
                continue_final_message=bool(request.continue_final_message),
                add_special_tokens=bool(request.add_special_tokens),
                tools=request.tools,
                documents=request.documents,
                chat_template_kwargs=request.chat_template_kwargs,
            )
            ids = await render_chat_prompt(self, request.messages, options)
        else:
            add_special_tokens = request.add_special_tokens is not False
            ids = await self.encode(
                request.prompt or "", add_special_tokens=add_special_tokens, must_fit=False
            )
        strs = None
        if request.return_token_strs:
            strs = (await self.engine.get_tokenizer()).convert_ids_to_tokens(ids)
        return TokenizeResponse(
            count=len(ids), max_model_len=self.max_model_len, tokens=ids, token_strs=strs
        )

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """Text of token ids, special tokens included.

        Raises:
            VLLMValidationError: an id is outside the vocabulary.
        """
        self.check_model(request.model)
        tokenizer = await self.engine.get_tokenizer()
        if tokenizer is None:
            raise VLLMValidationError("tokens: this server runs without a tokenizer")
        vocab_size = self.engine.model_config.vocab_size
        for token_id in request.tokens:
            if not 0 <= token_id < vocab_size:
                raise VLLMValidationError(
                    f"tokens: {token_id} is outside the vocabulary; pass ids from 0 to "
                    f"{vocab_size - 1}",
                    parameter="tokens",
                    value=token_id,
                )
        size = len(request.tokens)
        text: str = await run_tokenizer(tokenizer.decode, request.tokens, size=size)
        return DetokenizeResponse(prompt=text)
