# SPDX-License-Identifier: Apache-2.0
"""Answers /v1/completions: prompts to engine requests, outputs to choices.

A stream and a whole answer come from the same pieces, so that text, usage, logprobs and finish
reason are the same.
"""

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.responses import Response

from vllm.entrypoints.openai.completion.protocol import (
    DEFAULT_MAX_TOKENS,
    CompletionChoice,
    CompletionLogProbs,
    CompletionRequest,
    CompletionResponse,
    CompletionResponseChoice,
    CompletionStreamResponse,
)
from vllm.entrypoints.openai.logprobs import (
    CompletionLogprobsBuilder,
    extend,
    wire_prompt_logprobs,
)
from vllm.entrypoints.openai.protocol import PromptLogprobsWire
from vllm.entrypoints.openai.sampling import default_max_tokens, to_sampling_params
from vllm.entrypoints.openai.serving import (
    EnginePrompt,
    OpenAIServing,
    UsageCounter,
    json_response,
)
from vllm.exceptions import VLLMValidationError
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams

MAX_CHOICES = 4_096


@dataclass(slots=True)
class _Choice:
    """A choice in the making."""

    builder: CompletionLogprobsBuilder
    has_echoed: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request, ready to run."""

    request: CompletionRequest
    prompts: list[EnginePrompt]
    params: list[SamplingParams]
    first_tokens: list[str]
    choices: list[_Choice]
    id: str
    created: int

    @property
    def n(self) -> int:
        """Choices per prompt."""
        return self.params[0].n


class OpenAIServingCompletion(OpenAIServing):
    """Serves /v1/completions."""

    async def create(self, request: CompletionRequest, request_id: str) -> Response:
        """The whole answer at once."""
        plan = await self._plan(request, request_id)
        usage = UsageCounter(plan.prompts)
        done: dict[int, CompletionResponseChoice] = {}
        outputs = self.generate(plan.prompts, plan.params, request, plan.id)
        async with contextlib.aclosing(outputs):
            async for prompt_index, output in outputs:
                usage.add(prompt_index, output)
                for completion in output.outputs:
                    choice = self._choice(plan, prompt_index, output, completion)
                    done[choice.index] = CompletionResponseChoice(
                        **dict(choice), prompt_logprobs=self._prompt_logprobs(request, output)
                    )
        answer = CompletionResponse(
            id=plan.id,
            created=plan.created,
            model=self.state.model_name,
            choices=[done[index] for index in sorted(done)],
            usage=usage.usage(),
        )
        return json_response(answer)

    async def stream(
        self, request: CompletionRequest, request_id: str
    ) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events, without the closing one."""
        plan = await self._plan(request, request_id)
        usage = UsageCounter(plan.prompts)
        outputs = self.generate(plan.prompts, plan.params, request, plan.id)
        async with contextlib.aclosing(outputs):
            async for prompt_index, output in outputs:
                usage.add(prompt_index, output)
                for completion in output.outputs:
                    choice = self._choice(plan, prompt_index, output, completion)
                    yield self.stream_chunk(CompletionStreamResponse, plan, [choice], usage)
        if request.include_usage:
            yield self.stream_chunk(CompletionStreamResponse, plan, [], usage)

    async def _plan(self, request: CompletionRequest, request_id: str) -> _Plan:
        self.check_model(request.model)
        num_choices = len(request.prompt) * (request.n or 1)
        if num_choices > MAX_CHOICES:
            raise VLLMValidationError(
                f"n: {num_choices} answers over all prompts; at most {MAX_CHOICES} are given",
                parameter="n",
            )
        prompts = [await self._engine_prompt(request, prompt) for prompt in request.prompt]
        params = [self._params(request, len(prompt.token_ids)) for prompt in prompts]
        token_text = None
        if request.logprobs is not None:
            token_text = await self.token_text()
        first_tokens = [""] * len(prompts)
        if request.echo and request.logprobs is not None:
            first_tokens = [await self._decode(p.token_ids[:1]) for p in prompts]
        return _Plan(
            request=request,
            prompts=prompts,
            params=params,
            first_tokens=first_tokens,
            choices=[
                _Choice(
                    CompletionLogprobsBuilder(
                        token_text,
                        prompt.token_ids,
                        skip_special_tokens=params[0].skip_special_tokens,
                    )
                )
                for prompt in prompts
                for _ in range(params[0].n)
            ],
            id=f"cmpl-{request_id}",
            created=int(time.time()),
        )

    def _params(self, request: CompletionRequest, num_prompt_tokens: int) -> SamplingParams:
        defaults = self.engine.model_config.generation_defaults
        max_tokens = request.max_tokens
        if max_tokens is None:
            room = self.max_model_len - num_prompt_tokens
            max_tokens = default_max_tokens(request, defaults, room, api_default=DEFAULT_MAX_TOKENS)
        prompt_logprobs = request.prompt_logprobs
        if request.echo and request.logprobs is not None and prompt_logprobs is None:
            prompt_logprobs = request.logprobs
        return to_sampling_params(
            request,
            defaults,
            max_tokens=max_tokens,
            logprobs=request.logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    async def _engine_prompt(
        self, request: CompletionRequest, prompt: str | list[int]
    ) -> EnginePrompt:
        if isinstance(prompt, list):
            text = await self._decode(prompt) if request.echo else None
            return EnginePrompt(prompt, text)
        add_special_tokens = request.add_special_tokens is not False
        ids = await self.encode(prompt, add_special_tokens=add_special_tokens)
        return EnginePrompt(ids, prompt)

    async def _decode(self, token_ids: list[int]) -> str:
        tokenizer = await self.engine.get_tokenizer()
        vocab_size = self.engine.model_config.vocab_size
        if tokenizer is None or any(token_id >= vocab_size for token_id in token_ids):
            return ""  # refused by the engine, or has no text to echo
        return str(tokenizer.decode(token_ids))

    def _choice(
        self, plan: _Plan, prompt_index: int, output: RequestOutput, completion: CompletionOutput
    ) -> CompletionChoice:
        """What `completion` adds to its choice."""
        index = prompt_index * plan.n + completion.index
        state = plan.choices[index]
        is_echo = bool(plan.request.echo) and not state.has_echoed
        text = (plan.prompts[prompt_index].text or "") if is_echo else ""
        text += completion.text
        logprobs = None
        if plan.request.logprobs is not None:
            echoed = prompt_index if is_echo else None
            logprobs = self._logprobs(plan, output, completion, state, echoed=echoed)
        state.has_echoed = True
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )

    def _logprobs(
        self,
        plan: _Plan,
        output: RequestOutput,
        completion: CompletionOutput,
        state: _Choice,
        *,
        echoed: int | None,
    ) -> CompletionLogProbs:
        """Logprobs of `completion`, after those of the prompt at `echoed`, if any."""
        before = None
        if echoed is not None and output.prompt_logprobs is not None:
            prompt = plan.prompts[echoed]
            before = state.builder.add_prompt(
                prompt.text or "",
                prompt.token_ids,
                output.prompt_logprobs,
                plan.first_tokens[echoed],
            )
        added = state.builder.add(
            completion.token_ids,
            completion.logprobs or [],
            completion.text,
            is_last=completion.finish_reason is not None,
        )
        return added if before is None else extend(before, added)

    @staticmethod
    def _prompt_logprobs(
        request: CompletionRequest, output: RequestOutput
    ) -> PromptLogprobsWire | None:
        if request.prompt_logprobs is None:
            return None
        return wire_prompt_logprobs(output.prompt_logprobs)
