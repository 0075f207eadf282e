# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, dawdle, or send too much, over real sockets."""

import asyncio
import json

import pytest

from tests.entrypoints.openai.scripted_engine import ScriptedEngine, say
from tests.entrypoints.serve.conftest import until

pytestmark = pytest.mark.asyncio

SLOW = {"scripts": [say("x" * 500)], "step_s": 0.02}


def post(body, *, length=None) -> bytes:
    text = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text) if length is None else length}\r\n\r\n"
    )
    return head.encode() + text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"n": 4}, {"prompt": ["a", "b", "c"]}])
async def test_a_client_that_leaves_ends_its_requests(run_app, stream, fields):
    engine = ScriptedEngine(**SLOW)
    async with run_app(engine) as up:
        _, writer = await up.connect()
        writer.write(post({"prompt": "ab", **fields, "stream": stream}))
        num_requests = len(fields["prompt"]) if "prompt" in fields else 1
        await until(lambda: len(engine.active) == num_requests)
        writer.close()
        await until(lambda: not engine.active)
        assert len(engine.aborted) == num_requests


async def test_a_client_that_leaves_before_the_first_token_ends_its_request(run_app):
    engine = ScriptedEngine(step_s=60)
    async with run_app(engine) as up:
        for stream in (False, True):
            _, writer = await up.connect()
            writer.write(post({"prompt": "ab", "stream": stream}))
            await until(lambda: len(engine.active) == 1)
            writer.close()
            await until(lambda: not engine.active)


async def test_a_client_that_leaves_amid_its_body_leaves_nothing(run_app):
    async with run_app(ScriptedEngine()) as up:
        _, writer = await up.connect()
        writer.write(post({"prompt": "ab"}, length=500))
        await until(lambda: len(up.server.server_state.tasks) == 1)
        writer.close()
        await until(lambda: not up.server.server_state.tasks)
        assert not up.engine.seen


async def test_one_client_leaving_does_not_touch_the_others(run_app):
    engine = ScriptedEngine([say("x" * 20)], step_s=0.02)
    async with run_app(engine) as up, up.client() as client:
        _, writer = await up.connect()
        writer.write(post({"prompt": "ab", "stream": True}))
        kept = asyncio.create_task(client.post("/v1/completions", json={"prompt": "ab"}))
        await until(lambda: len(engine.active) == 2)
        writer.close()
        assert (await kept).json()["choices"][0]["text"] == "x" * 20
        assert len(engine.aborted) == 1


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /v1/comp", b"GET / HTTP/1.1\r\nHost", post({"prompt": "ab"}, length=500)],
)
async def test_slow_requests_are_cut(run_app, sent):
    async with run_app(ScriptedEngine(), request_receive_timeout=0.2) as up:
        reader, writer = await up.connect()
        writer.write(sent)
        with_answer = await asyncio.wait_for(_read_all(reader), 2)
        assert b"200 OK" not in with_answer
        await until(lambda: not up.server.server_state.connections)
        writer.close()


async def _read_all(reader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_the_receive_limit_does_not_cut_long_answers_or_kept_connections(run_app):
    engine = ScriptedEngine([say("x" * 20)], step_s=0.03)
    async with run_app(engine, request_receive_timeout=0.2) as up, up.client() as client:
        for _ in range(2):
            response = await client.post("/v1/completions", json={"prompt": "ab"})
            assert response.json()["choices"][0]["text"] == "x" * 20
        await asyncio.sleep(0.3)
        assert (await client.get("/health")).status_code == 200


async def test_a_client_that_reads_nothing_is_taken_for_gone(run_app):
    engine = ScriptedEngine([say("x" * 100_000)])
    async with run_app(engine, response_send_timeout=0.3) as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", up.port, limit=1024)
        reader._transport.pause_reading()
        writer.write(post({"prompt": "ab", "stream": True}))
        await until(lambda: len(engine.active) == 1)
        await until(lambda: not engine.active, 10)
        writer.close()


LIMIT = 64 * 1024
FIXED = len("GET /health HTTP/1.1\r\nHost: a\r\nX-A: \r\n\r\n")


@pytest.mark.parametrize("is_one_piece", [True, False])
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX-A: %s\r\n\r\n" % (b"a" * (LIMIT - FIXED)), 200),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX-A: %s\r\n\r\n" % (b"a" * (LIMIT - FIXED + 1)), 431),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX-A: %s\r\n\r\n" % (b"a" * 200_000), 431),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX-A: %sa\r\n\r\n" % (b" " * 100_000), 431),
        (b"GET /health?%s HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 100_000), 431),
        (b"GET /health HTTP/1.1\r\nHost: a\r\n%s\r\n" % (b"X: y\r\n" * 20_000), 431),
        (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", 400),
    ],
)
async def test_headers_are_held_to_their_limit_however_they_arrive(
    run_app, head, status, is_one_piece
):
    async with run_app(ScriptedEngine()) as up:
        reader, writer = await up.connect()
        for start in range(0, len(head), len(head) if is_one_piece else 10_000):
            writer.write(head[start : start + (len(head) if is_one_piece else 10_000)])
            await asyncio.sleep(0)
        if status == 200:
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        else:
            answer = await asyncio.wait_for(_read_all(reader), 5)
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == status
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        writer.close()


async def test_trailers_are_held_to_the_limit_of_headers(run_app):
    async with run_app(ScriptedEngine()) as up:
        reader, writer = await up.connect()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-A: %s\r\n\r\n" % (b"a" * 100_000)
        )
        assert (await asyncio.wait_for(_read_all(reader), 5)).startswith(b"HTTP/1.1 431 ")
        writer.close()


async def test_many_silent_connections_leave_nothing(run_app):
    async with run_app(ScriptedEngine(), request_receive_timeout=0.3) as up:
        pairs = [await up.connect() for _ in range(200)]
        async with up.client() as client:
            assert (await client.get("/health")).status_code == 200
        await until(lambda: not up.server.server_state.connections, 3)
        assert not up.server.server_state.tasks
        for _, writer in pairs:
            writer.close()


async def test_connections_over_the_limit_get_503(run_app):
    async with run_app(ScriptedEngine(**SLOW), max_connections=2) as up, up.client() as client:
        _, writer = await up.connect()
        writer.write(post({"prompt": "ab", "stream": True}))
        await until(lambda: len(up.engine.active) == 1)
        assert (await client.get("/v1/models")).status_code == 503
        writer.close()


async def test_running_requests_finish_while_the_server_drains(run_app):
    engine = ScriptedEngine([say("x" * 20)], step_s=0.02)
    async with run_app(engine, shutdown_timeout=5) as up, up.client() as client:
        answer = asyncio.create_task(client.post("/v1/completions", json={"prompt": "ab"}))
        await until(lambda: len(engine.active) == 1)
        await up.stop()
        assert (await answer).json()["choices"][0]["text"] == "x" * 20
        assert not engine.aborted


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_outlast_the_drain_are_told(run_app, stream):
    engine = ScriptedEngine(**SLOW)
    async with run_app(engine, shutdown_timeout=0.2) as up, up.client() as client:
        body = {"prompt": "ab", "stream": stream}
        answer = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: len(engine.active) == 1)
        await asyncio.sleep(0.1)
        await asyncio.wait_for(up.stop(), 3)
        response = await answer
        assert "shutting down" in response.text
        if stream:
            assert "[DONE]" not in response.text
        else:
            assert response.status_code == 503 and "retry-after" in response.headers
        assert len(engine.aborted) == 1 and not engine.active


async def test_a_second_signal_does_not_wait(run_app):
    engine = ScriptedEngine(**SLOW)
    async with run_app(engine, shutdown_timeout=60) as up, up.client() as client:
        answer = asyncio.create_task(client.post("/v1/completions", json={"prompt": "ab"}))
        await until(lambda: len(engine.active) == 1)
        up.server.handle_exit(15, None)
        await asyncio.sleep(0.2)
        assert not up.serving.done()
        up.server.handle_exit(15, None)
        await asyncio.wait_for(up.serving, 3)
        assert (await answer).status_code == 503


async def test_an_idle_server_stops_at_once_although_a_client_stays_connected(run_app):
    async with run_app(ScriptedEngine()) as up, up.client() as client:
        await client.get("/health")
        started = asyncio.get_running_loop().time()
        await up.stop()
        assert asyncio.get_running_loop().time() - started < 1
