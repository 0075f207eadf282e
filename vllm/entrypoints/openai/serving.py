# SPDX-License-Identifier: Apache-2.0
"""What the serving classes of all endpoints share: the engine, names, tokenizing, usage."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.responses import Response

from vllm.entrypoints.openai.engine_client import EngineClient
from vllm.entrypoints.openai.errors import ServerShuttingDownError
from vllm.entrypoints.openai.protocol import PromptTokensDetails, SamplingFields, UsageInfo
from vllm.entrypoints.openai.streams import InFlight, merge_generators
from vllm.exceptions import ModelNotFoundError, RequestFailedError, VLLMValidationError
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.metrics.loggers import PrometheusStatLogger

# Texts up to this length are tokenized in the event loop; longer ones would stall it.
MAX_INLINE_CHARS = 4_096


@dataclass(slots=True)
class ServerState:
    """What lives as long as the server and is shared by all requests.

    Attributes:
        served_model_names: names that requests may use; the first is reported.
        tokenizer_thread: one thread, since tokenizers keep state while they encode.
    """

    engine: EngineClient
    served_model_names: tuple[str, ...]
    registry: CollectorRegistry
    stats: PrometheusStatLogger | None = None
    in_flight: InFlight = field(default_factory=InFlight)
    started_at: int = field(default_factory=lambda: int(time.time()))
    tokenizer_thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
    )

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

    async def run_tokenizer(self, call: Any, *args: Any, size: int) -> Any:
        """Call `call(*args)`, off the event loop when `size` characters are many."""
        if size <= MAX_INLINE_CHARS:
            return call(*args)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.state.tokenizer_thread, call, *args)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`.

        Raises:
            VLLMValidationError: the server runs without a tokenizer.
        """
        tokenizer = await self.engine.get_tokenizer()
        if tokenizer is None:
            raise VLLMValidationError(
                "prompt: this server runs without a tokenizer; pass token ids", parameter="prompt"
            )

        def run() -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))

        ids: list[int] = await self.run_tokenizer(run, size=len(text))
        return ids

    async def silent_token_ids(self, params: SamplingParams) -> frozenset[int]:
        """Ids that leave no text in the output."""
        tokenizer = await self.engine.get_tokenizer()
        if tokenizer is None or not params.skip_special_tokens:
            return frozenset()
        return frozenset(tokenizer.all_special_ids)

    def generate(
        self,
        prompts: Sequence[EnginePrompt],
        params: Sequence[SamplingParams],
        request: SamplingFields,
        request_id: str,
    ) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Outputs of all prompts as they come, each with its prompt's position.

        Raises:
            RequestFailedError: the engine failed while it ran one of them.
        """
        # Clients may send the same request id twice at a time; the engine's must be unique.
        unique = uuid.uuid4().hex[:8]
        generators = [
            self._checked(prompt, sampling, request, f"{request_id}-{i}-{unique}")
            for i, (prompt, sampling) in enumerate(zip(prompts, params, strict=True))
        ]
        return merge_generators(generators)

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
            if completion.finish_reason == "error":
                raise RequestFailedError(output.error or "the engine failed on this request")
            if completion.finish_reason == "abort":
                raise ServerShuttingDownError("the request was aborted by the server")


def json_response(model: BaseModel) -> Response:
    """`model` as a JSON response."""
    return Response(model.model_dump_json(), media_type="application/json")
