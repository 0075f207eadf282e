# SPDX-License-Identifier: Apache-2.0
"""The application over a scripted engine, behind a real socket, in this event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.entrypoints.openai.scripted_engine import ScriptedEngine
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.entrypoints.serve.draining import DrainingServer
from vllm.entrypoints.serve.launcher import bind_socket, make_server


@dataclass
class Running:
    """A server that listens."""

    engine: ScriptedEngine
    server: DrainingServer
    port: int
    serving: "asyncio.Task[None]"

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: Any) -> httpx.AsyncClient:
        """An HTTP client."""
        return httpx.AsyncClient(base_url=self.url, timeout=20, **options)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop as after a signal."""
        self.server.handle_exit(2, None)
        await self.serving


async def until(condition: Callable[[], bool], timeout_s: float = 1.0) -> None:
    """Wait for `condition`, and fail if it does not come."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(engine: ScriptedEngine, **options: Any) -> AsyncIterator[Running]:
    """A server over `engine`; options are `FrontendArgs` fields."""
    args = FrontendArgs(port=0, **options)
    sock: socket.socket = bind_socket(args)
    app = build_app(args, engine)
    server = make_server(app, args)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await until(lambda: server.started, 5)
    up = Running(engine, server, sock.getsockname()[1], serving)
    try:
        yield up
    finally:
        if not serving.done():
            server.handle_exit(2, None)
            server.handle_exit(2, None)
            await serving
        sock.close()


@pytest.fixture
def run_app() -> Callable[..., Any]:
    """`running`, as a fixture."""
    return running
