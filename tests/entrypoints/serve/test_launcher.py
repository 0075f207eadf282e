# SPDX-License-Identifier: Apache-2.0
"""Binding, exit codes, and the watch over the engine."""

import asyncio
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess

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


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Folder with a self-signed certificate, its key, another key, and a file of junk."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    make = f"{openssl} req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2"
    make += " -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    for command in (make, f"{openssl} genrsa -out other.pem 2048"):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (folder / "junk.pem").write_text("junk")
    return folder


@pytest.mark.parametrize(
    ("cert", "key", "ca", "words"),
    [
        ("cert.pem", "none.pem", None, "ssl_keyfile=.*no such file"),
        ("none.pem", "key.pem", None, "ssl_certfile=.*no such file"),
        ("cert.pem", "other.pem", None, "mismatch"),
        ("junk.pem", "key.pem", None, "PEM certificate chain"),
        ("cert.pem", "junk.pem", None, "PEM certificate chain"),
        ("cert.pem", "key.pem", "junk.pem", "ssl_ca_certs=.*CA certificates"),
    ],
)
def test_wrong_tls_files_are_told_before_anything_starts(tls, cert, key, ca, words):
    args = FrontendArgs(
        ssl_certfile=str(tls / cert),
        ssl_keyfile=str(tls / key),
        ssl_ca_certs=None if ca is None else str(tls / ca),
        ssl_cert_reqs=0 if ca is None else 2,
    )
    with pytest.raises(ConfigError, match=words):
        launcher.check_tls(args)


@pytest.mark.parametrize(
    "options",
    [
        {"ssl_certfile": "c"},
        {"ssl_ca_certs": "c"},
        {"ssl_ca_certs": "c", "ssl_cert_reqs": 2},
        {"ssl_certfile": "c", "ssl_keyfile": "k", "ssl_cert_reqs": 2},
        {"ssl_certfile": "c", "ssl_keyfile": "k", "ssl_ca_certs": "a"},
        {"ssl_cert_reqs": 3},
    ],
)
def test_tls_options_that_would_protect_nothing_are_refused(options):
    with pytest.raises(ConfigError, match="ssl_"):
        FrontendArgs(**options)


@pytest.mark.asyncio
async def test_https_serves_and_plain_http_gets_nothing(run_app, tls):
    options = {"ssl_certfile": str(tls / "cert.pem"), "ssl_keyfile": str(tls / "key.pem")}
    async with run_app(ScriptedEngine(), **options) as up:
        trusted = ssl.create_default_context(cafile=tls / "cert.pem")
        url = up.url.replace("http:", "https:")
        async with httpx.AsyncClient(base_url=url, verify=trusted) as client:
            response = await client.post("/v1/completions", json={"prompt": "ab"})
            assert response.json()["choices"][0]["text"] == "hello"
            big = await client.get("/health", headers={"X-A": "a" * 100_000})
            assert big.status_code == 431
        async with up.client() as plain:
            with pytest.raises(httpx.RemoteProtocolError):
                await plain.get("/health")


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
