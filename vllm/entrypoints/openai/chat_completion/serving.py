# SPDX-License-Identifier: Apache-2.0
"""Answers /v1/chat/completions: a conversation to one engine request, outputs to choices."""

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatAnswer,
    ChatCompletionLogProbs,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionStreamChoice,
    ChatCompletionStreamResponse,
    DeltaMessage,
)
from vllm.entrypoints.openai.chat_completion.rendering import (
    ChatPromptOptions,
    render_chat_prompt,
)
from vllm.entrypoints.openai.logprobs import chat_logprobs, wire_prompt_logprobs
from vllm.entrypoints.openai.sampling import default_max_tokens, to_sampling_params
from vllm.entrypoints.openai.serving import (
    EnginePrompt,
    OpenAIServing,
    UsageCounter,
    json_response,
)
from vllm.logprobs import SampleLogprobs
from vllm.outputs import CompletionOutput
from vllm.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request, ready to run."""

    request: ChatCompletionRequest
    prompt: EnginePrompt
    params: SamplingParams
    tokenizer: Any
    id: str
    created: int

    def logprobs(
        self, token_ids: list[int], rows: SampleLogprobs | None
    ) -> ChatCompletionLogProbs | None:
        """Logprobs of `token_ids`, if the request asks for any."""
        if not self.request.logprobs or rows is None:
            return None
        num_top = self.request.num_logprobs or 0
        content = chat_logprobs(token_ids, rows, num_top, self.tokenizer)
        return ChatCompletionLogProbs(content=content)


class OpenAIServingChat(OpenAIServing):
    """Serves /v1/chat/completions."""

    async def create(self, request: ChatCompletionRequest, request_id: str) -> Response:
        """The whole answer at once."""
        plan = await self._plan(request, request_id)
        usage = UsageCounter([plan.prompt])
        choices: dict[int, ChatCompletionResponseChoice] = {}
        prompt_logprobs = None
        outputs = self.generate([plan.prompt], [plan.params], request, plan.id)
        async with contextlib.aclosing(outputs):
            async for _, output in outputs:
                usage.add(0, output)
                prompt_logprobs = output.prompt_logprobs or prompt_logprobs
                for completion in output.outputs:
                    choices[completion.index] = self._choice(plan, completion)
        answer = ChatCompletionResponse(
            id=plan.id,
            created=plan.created,
            model=self.state.model_name,
            choices=[choices[index] for index in sorted(choices)],
            usage=usage.usage(),
            prompt_logprobs=wire_prompt_logprobs(prompt_logprobs),
        )
        return json_response(answer)

    async def stream(
        self, request: ChatCompletionRequest, request_id: str
    ) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, without the closing one."""
        plan = await self._plan(request, request_id)
        usage = UsageCounter([plan.prompt])
        has_begun = False
        outputs = self.generate([plan.prompt], [plan.params], request, plan.id)
        async with contextlib.aclosing(outputs):
            async for _, output in outputs:
                if not has_begun:
                    has_begun = True
                    for index in range(plan.params.n):
                        yield self.stream_chunk(
                            ChatCompletionStreamResponse, plan, [_role_choice(index)], usage
                        )
                usage.add(0, output)
                for completion in output.outputs:
                    choice = self._delta(plan, completion)
                    yield self.stream_chunk(ChatCompletionStreamResponse, plan, [choice], usage)
        if request.include_usage:
            yield self.stream_chunk(ChatCompletionStreamResponse, plan, [], usage)

    async def _plan(self, request: ChatCompletionRequest, request_id: str) -> _Plan:
        self.check_model(request.model)
        defaults = self.engine.model_config.generation_defaults
        max_tokens = request.max_completion_tokens
        if max_tokens is None:
            max_tokens = request.max_tokens
        params = to_sampling_params(
            request,
            defaults,
            max_tokens=max_tokens,
            logprobs=request.num_logprobs,
            prompt_logprobs=request.prompt_logprobs,
        )
        options = ChatPromptOptions(
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=bool(request.continue_final_message),
            add_special_tokens=bool(request.add_special_tokens),
            tools=request.tools,
            documents=request.documents,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        token_ids = await render_chat_prompt(self, request.messages, options)
        if params.max_tokens is None:
            room = self.max_model_len - len(token_ids)
            params.max_tokens = default_max_tokens(request, defaults, room, api_default=None)
        return _Plan(
            request=request,
            prompt=EnginePrompt(token_ids),
            params=params,
            tokenizer=await self.engine.get_tokenizer(),
            id=f"chatcmpl-{request_id}",
            created=int(time.time()),
        )

    def _choice(self, plan: _Plan, completion: CompletionOutput) -> ChatCompletionResponseChoice:
        return ChatCompletionResponseChoice(
            index=completion.index,
            message=ChatAnswer(content=completion.text),
            logprobs=plan.logprobs(completion.token_ids, completion.logprobs),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )

    def _delta(self, plan: _Plan, completion: CompletionOutput) -> ChatCompletionStreamChoice:
        """What `completion` adds to its choice."""
        delta = DeltaMessage(content=completion.text) if completion.text else DeltaMessage()
        return ChatCompletionStreamChoice(
            index=completion.index,
            delta=delta,
            logprobs=plan.logprobs(completion.token_ids, completion.logprobs),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )


def _role_choice(index: int) -> ChatCompletionStreamChoice:
    return ChatCompletionStreamChoice(index=index, delta=DeltaMessage(role="assistant", content=""))
