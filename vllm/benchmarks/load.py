# SPDX-License-Identifier: Apache-2.0
"""Generates load on an OpenAI-compatible server and times each streamed answer."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.exceptions import ConfigError

if TYPE_CHECKING:
    import httpx

# Any text does that holds a few dozen different tokens.
_POOL_TEXT = (
    "river stone lantern orchard winter copper harbor violin meadow thunder canvas ember "
    "glacier saddle compass velvet 0 1 2 3 4 5 6 7 8 9 ( ) , . ; : ! ?"
)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The load.

    Attributes:
        token_pool: token ids that prompts are drawn from.
        input_len: tokens per prompt.
        output_len: tokens per answer, exactly.
        max_concurrency: most requests at once; None is unbounded.
        request_rate: mean requests per second; infinite sends all at once.
    """

    model: str
    token_pool: list[int]
    num_requests: int
    input_len: int
    output_len: int
    max_concurrency: int | None = None
    request_rate: float = math.inf
    seed: int = 0


@dataclass(slots=True)
class RequestResult:
    """One answer, in seconds since it was sent.

    Attributes:
        gaps_s: between one chunk of text and the next.
        error: why it failed; the times are then meaningless.
    """

    ttft_s: float = 0.0
    total_s: float = 0.0
    num_output_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    error: str | None = None


async def get_token_pool(client: httpx.AsyncClient, model: str) -> list[int]:
    """Ids that are valid for the server's model.

    Raises:
        ConfigError: the server has no /tokenize.
    """
    body = {"model": model, "prompt": _POOL_TEXT, "add_special_tokens": False}
    response = await client.post("/tokenize", json=body)
    if response.status_code != 200:
        raise ConfigError(f"/tokenize answered {response.status_code}: {response.text[:200]}")
    return sorted(set(response.json()["tokens"]))


async def generate_load(client: httpx.AsyncClient, options: LoadOptions) -> list[RequestResult]:
    """Send all requests as the options say; one result each, in order."""
    draw = random.Random(options.seed)
    gate = asyncio.Semaphore(options.max_concurrency or max(1, options.num_requests))
    tasks = []

    async def gated(prompt: list[int]) -> RequestResult:
        async with gate:
            return await _send(client, options, prompt)

    for _ in range(options.num_requests):
        prompt = draw.choices(options.token_pool, k=options.input_len)
        tasks.append(asyncio.create_task(gated(prompt)))
        if math.isfinite(options.request_rate):
            await asyncio.sleep(draw.expovariate(options.request_rate))
    return list(await asyncio.gather(*tasks))


async def _send(
    client: httpx.AsyncClient, options: LoadOptions, prompt: list[int]
) -> RequestResult:
    import httpx

    body = {
        "model": options.model,
        "prompt": prompt,
        "max_tokens": options.output_len,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    result = RequestResult()
    start = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode(errors="replace")
                result.error = f"HTTP {response.status_code}: {text[:200]}"
                return result
            await _read_events(response, result, start)
    except httpx.HTTPError as error:
        result.error = f"{type(error).__name__}: {error}"
    result.total_s = time.perf_counter() - start
    return result


async def _read_events(response: httpx.Response, result: RequestResult, start: float) -> None:
    last = None
    is_done = False
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            is_done = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            result.error = str(event["error"].get("message"))
            return
        if event.get("usage"):
            result.num_output_tokens = event["usage"]["completion_tokens"]
        if any(choice["text"] for choice in event["choices"]):
            now = time.perf_counter()
            if last is None:
                result.ttft_s = now - start
            else:
                result.gaps_s.append(now - last)
            last = now
    if not is_done:
        result.error = "the stream broke off"
    elif last is None:
        result.error = "the answer held no text"
