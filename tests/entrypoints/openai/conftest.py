# SPDX-License-Identifier: Apache-2.0
"""A client of the application over a scripted engine, without sockets."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.entrypoints.openai.scripted_engine import ScriptedEngine
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.v1.metrics.loggers import PrometheusStatLogger


@dataclass
class Stream:
    """A streamed answer: its chunks, and whether it ended with `[DONE]`."""

    status: int
    chunks: list[dict[str, Any]]
    is_done: bool

    def text(self, index: int = 0) -> str:
        """Joined text of choice `index`."""
        return "".join(
            c.get("text", "") or c.get("delta", {}).get("content", "")
            for chunk in self.chunks
            for c in chunk.get("choices", ())
            if c["index"] == index
        )

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        """Pieces of choice `index`."""
        return [c for k in self.chunks for c in k.get("choices", ()) if c["index"] == index]


class Api:
    """Calls the application; one event loop per call."""

    def __init__(self, engine: ScriptedEngine, **options: Any) -> None:
        self.engine = engine
        self.stats = PrometheusStatLogger("tiny", 64)
        self.app = build_app(FrontendArgs(**options), engine, stats=self.stats)

    async def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One request."""
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **kwargs)

    async def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        """POST JSON."""
        return await self.request("POST", path, json=body, **kwargs)

    async def complete(self, **body: Any) -> httpx.Response:
        """POST /v1/completions."""
        return await self.post("/v1/completions", {"prompt": "ab", **body})

    async def stream(self, path: str = "/v1/completions", **body: Any) -> Stream:
        """POST with stream=true and read to the end."""
        defaults = {"prompt": "ab"} if path == "/v1/completions" else {}
        response = await self.post(path, {**defaults, **body, "stream": True})
        lines = [e for e in response.text.split("\n\n") if e]
        assert all(e.startswith("data: ") for e in lines) or response.status_code != 200
        data = [e.removeprefix("data: ") for e in lines]
        is_done = bool(data) and data[-1] == "[DONE]"
        chunks = [json.loads(d) for d in data if d != "[DONE]"]
        return Stream(response.status_code, chunks, is_done)


@pytest.fixture
def make_api() -> Callable[..., Api]:
    """Build an `Api` over an engine; options are `FrontendArgs` fields."""

    def make(engine: ScriptedEngine | None = None, **options: Any) -> Api:
        return Api(engine or ScriptedEngine(), **options)

    return make


@pytest.fixture
def api(make_api: Callable[..., Api]) -> Api:
    """An `Api` over an engine that says hello."""
    return make_api()
