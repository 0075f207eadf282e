# SPDX-License-Identifier: Apache-2.0
"""Binding, exit codes, and the watch over the engine."""

import asyncio
import os
import signal
import socket
import stat

import httpx
import pytest

from tests.entrypoints.openai.scripted_engine import ScriptedEngine, say
from tests.entrypoints.serve.conftest import until
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.entrypoints.serve import launcher
from vllm.exceptions import ConfigError


def test_a_taken_port_is_told_in_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        args = FrontendArgs(port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="pass another --port"):
            launcher.bind_socket(args)


def test_a_bound_socket_refuses_until_it_listens():
    sock = launcher.bind_socket(FrontendArgs(port=0))
    with sock, pytest.raises(ConnectionRefusedError):
        socket.create_connection(sock.getsockname(), timeout=1)


def test_a_unix_socket_is_private_and_a_stale_one_is_replaced(tmp_path):
    path = str(tmp_path / "s")
    launcher.bind_socket(FrontendArgs(uds=path)).close()
    with launcher.bind_socket(FrontendArgs(uds=path)) as sock:
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0
        sock.listen()
        with pytest.raises(ConfigError, match="in use"):
            launcher.bind_socket(FrontendArgs(uds=path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError):
        launcher.bind_socket(FrontendArgs(uds=str(tmp_path / "file")))
    assert (tmp_path / "file").read_text() == "x"


def test_signals_while_starting_exit_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stopped, launcher.exit_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


async def serve(engine, sock, **options):
    args = FrontendArgs(port=0, **options)
    return await launcher.serve_app(build_app(args, engine), args, sock)


@pytest.mark.asyncio
async def test_a_signal_ends_with_0():
    with launcher.bind_socket(FrontendArgs(port=0)) as sock:
        task = asyncio.create_task(serve(ScriptedEngine(), sock))
        async with httpx.AsyncClient() as client:
            await _until_healthy(client, sock)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, 5) == 0


@pytest.mark.asyncio
async def test_a_dead_engine_turns_health_red_and_ends_with_1(monkeypatch):
    monkeypatch.setattr(launcher, "DEATH_GRACE_S", 0.5)
    engine = ScriptedEngine([say("x" * 3)])
    with launcher.bind_socket(FrontendArgs(port=0)) as sock:
        task = asyncio.create_task(serve(engine, sock))
        async with httpx.AsyncClient() as client:
            url = await _until_healthy(client, sock)
            engine.errored = True
            assert (await client.get(url + "/health")).status_code == 503
        assert await asyncio.wait_for(task, 5) == 1


async def _until_healthy(client, sock) -> str:
    url = "http://{}:{}".format(*sock.getsockname())
    for _ in range(200):
        try:
            if (await client.get(url + "/health")).status_code == 200:
                return url
        except httpx.ConnectError:
            await asyncio.sleep(0.02)
    raise AssertionError("the server did not come up")


@pytest.mark.asyncio
async def test_a_unix_socket_serves_and_is_removed(tmp_path):
    path = str(tmp_path / "s")
    sock = launcher.bind_socket(FrontendArgs(uds=path))
    task = asyncio.create_task(serve(ScriptedEngine(), sock, uds=path))
    await asyncio.sleep(0.3)
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get("/health")).status_code == 200
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(task, 5) == 0
    await until(lambda: not os.path.exists(path))
    sock.close()
