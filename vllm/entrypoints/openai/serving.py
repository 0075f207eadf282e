# SPDX-License-Identifier: Apache-2.0
"""What the serving classes of all endpoints share: the engine, names, tokenizing, usage."""

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.responses import Response

from vllm.entrypoints.openai.engine_client import EngineClient
from vllm.entrypoints.openai.errors import ServerShuttingDownError
from vllm.entrypoints.openai.protocol import PromptTokensDetails, SamplingFields, UsageInfo
from vllm.entrypoints.openai.streams import InFlight, merge_generators, sse_event
from vllm.exceptions import ModelNotFoundError, RequestFailedError, VLLMValidationError
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.tokenizers.encoding import check_text_can_fit, encode_text, run_tokenizer
from vllm.v1.engine.token_text import TokenText
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.outputs import REQUEST_FAULTS


@dataclass(slots=True)
class ServerState:
    """What lives as long as the server and is shared by all requests.

    Attributes:
        served_model_names: names that requests may use; the first is reported.
        token_text: made when it is first needed.
    """

    engine: EngineClient
    served_model_names: tuple[str, ...]
    registry: CollectorRegistry
    stats: PrometheusStatLogger | None = None
    token_text: TokenText | None = None
    in_flight: InFlight = field(default_factory=InFlight)
    started_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_name(self) -> str:
        """The name that answers report."""
        return self.served_model_names[0]

    def record_refusal(self) -> None:
        """Count a request that was refused because the queue is full."""
        if self.stats is not None:
            self.stats.record_refusal()


@dataclass(frozen=True, slots=True)
class EnginePrompt:
    """One prompt of a request, tokenized."""

    token_ids: list[int]
    text: str | None = None


class UsageCounter:
    """Adds up a request's tokens over prompts and choices."""

    def __init__(self, prompts: Sequence[EnginePrompt]) -> None:
        self._prompt_tokens = sum(len(p.token_ids) for p in prompts)
        self._completion_tokens = 0
        self._cached_tokens: dict[int, int] = {}

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Count what `output` brings (a delta, or everything at the end)."""
        self._completion_tokens += sum(len(c.token_ids) for c in output.outputs)
        if output.num_cached_tokens is not None:
            self._cached_tokens[prompt_index] = output.num_cached_tokens

    def usage(self) -> UsageInfo:
        """Usage so far."""
        details = None
        if self._cached_tokens:
            details = PromptTokensDetails(cached_tokens=sum(self._cached_tokens.values()))
        return UsageInfo(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=self._prompt_tokens + self._completion_tokens,
            prompt_tokens_details=details,
        )


class StreamPlan(Protocol):
    """What the chunks of one stream have in common."""

    @property
    def request(self) -> SamplingFields:
        """What was asked."""
        ...

    @property
    def id(self) -> str:
        """The answer's id."""
        ...

    @property
    def created(self) -> int:
        """When the answer began, in seconds since the epoch."""
        ...


class OpenAIServing:
    """Base of the serving classes."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.engine = state.engine

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served; no name means the one that is.

        Raises:
            ModelNotFoundError: `name` is another model.
        """
        if name is not None and name not in self.state.served_model_names:
            served = ", ".join(self.state.served_model_names)
            raise ModelNotFoundError(
                f"model {name[:200]!r} is not served here; served: {served}",
                parameter="model",
                value=name,
            )

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output."""
        return self.engine.model_config.max_model_len

    async def encode(
        self, text: str, *, add_special_tokens: bool, must_fit: bool = True
    ) -> list[int]:
        """Token ids of `text`; with `must_fit`, of one that the context may hold.

        Raises:
            VLLMValidationError: the server runs without a tokenizer, or the text cannot fit.
        """
        tokenizer = await self.engine.get_tokenizer()
        if tokenizer is None:
            raise VLLMValidationError(
                "prompt: this server runs without a tokenizer; pass token ids", parameter="prompt"
            )

        if must_fit:
            check_text_can_fit(tokenizer, len(text), self.max_model_len)
        encode = partial(encode_text, tokenizer, text, add_special_tokens=add_special_tokens)
        return await run_tokenizer(encode, size=len(text))

    async def token_text(self) -> TokenText | None:
        """How the engine's tokenizer turns ids into text; None without one."""
        tokenizer = await self.engine.get_tokenizer()
        if tokenizer is None:
            return None
        if self.state.token_text is None:
            self.state.token_text = TokenText(tokenizer)
        return self.state.token_text

    def generate(
        self,
        prompts: Sequence[EnginePrompt],
        params: Sequence[SamplingParams],
        request: SamplingFields,
        request_id: str,
    ) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Outputs of all prompts as they come, each with its prompt's position.

        Raises:
            VLLMValidationError: the engine never has room for all of them at once.
            EngineOverloadedError: it has none now; then none of them has been started.
            RequestFailedError: the engine failed while it ran one of them.
        """
        lengths = [len(prompt.token_ids) for prompt in prompts]
        self.engine.check_room([(p.n, size) for p, size in zip(params, lengths, strict=True)])
        # Clients may send the same request id twice at a time; the engine's must be unique.
        unique = uuid.uuid4().hex[:8]
        generators = [
            self._checked(prompt, sampling, request, f"{request_id}-{i}-{unique}")
            for i, (prompt, sampling) in enumerate(zip(prompts, params, strict=True))
        ]
        return merge_generators(generators)

    def stream_chunk(
        self,
        kind: type[BaseModel],
        plan: StreamPlan,
        choices: Sequence[BaseModel],
        usage: UsageCounter,
    ) -> bytes:
        """One event of a stream, a `kind`; the one without choices reports the usage."""
        with_usage = not choices or plan.request.include_continuous_usage
        chunk = kind(
            id=plan.id,
            created=plan.created,
            model=self.state.model_name,
            choices=choices,
            usage=usage.usage() if with_usage else None,
        )
        hidden = None if plan.request.include_usage else {"usage"}
        return sse_event(chunk.model_dump_json(exclude=hidden))

    async def _checked(
        self,
        prompt: EnginePrompt,
        params: SamplingParams,
        request: SamplingFields,
        engine_id: str,
    ) -> AsyncGenerator[RequestOutput, None]:
        engine_prompt: TokensPrompt = {"prompt_token_ids": prompt.token_ids}
        if prompt.text is not None:
            engine_prompt["prompt"] = prompt.text
        if request.cache_salt:
            engine_prompt["cache_salt"] = request.cache_salt
        source = self.engine.generate(
            engine_prompt, params, engine_id, priority=request.priority or 0
        )
        try:
            async for output in source:
                self._refuse_failed(output)
                yield output
        finally:
            await source.aclose()

    @staticmethod
    def _refuse_failed(output: RequestOutput) -> None:
        for completion in output.outputs:
            if completion.finish_reason == "error" and output.error in REQUEST_FAULTS:
                raise VLLMValidationError(output.error)
            if completion.finish_reason == "error":
                raise RequestFailedError(output.error or "the engine failed on this request")
            if completion.finish_reason == "abort":
                raise ServerShuttingDownError("the request was aborted by the server")


def json_response(model: BaseModel) -> Response:
    """`model` as a JSON response."""
    return Response(model.model_dump_json(), media_type="application/json")
