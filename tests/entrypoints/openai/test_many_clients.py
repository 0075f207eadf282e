# SPDX-License-Identifier: Apache-2.0
"""Many streaming clients at once, half of which leave: nobody else notices, nothing is kept."""

import asyncio
import json
import random
import time

import httpx
import psutil
import pytest

from tests.conftest import TinyModel
from tests.entrypoints.openai.remote_server import KEY, RemoteServer

CLIENTS = 200
ROUNDS = 5
MAX_TOKENS = 24
GROWTH_BYTES = 24 * 2**20  # of all processes, from the second round to the last


@pytest.mark.timeout(300)
def test_half_of_the_clients_leave(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("server") / "log"
    with RemoteServer(tiny_model("llama"), log) as server:
        resident = []
        for number in range(ROUNDS):
            answers = asyncio.run(_round(server, random.Random(number)))
            assert answers == [MAX_TOKENS] * (CLIENTS // 2)
            _wait_until_empty(server)
            resident.append(_resident_bytes(server))
        assert resident[-1] - resident[1] < GROWTH_BYTES, resident
        assert "Traceback" not in log.read_text()


async def _round(server: RemoteServer, rng: random.Random) -> list[int]:
    """Output tokens of each client that stayed."""
    limits = httpx.Limits(max_connections=CLIENTS)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, limits=limits, timeout=120
    ) as client:
        leaving = [rng.randrange(MAX_TOKENS) for _ in range(CLIENTS // 2)]
        calls = [_stream(client, rng.randrange(1, 60), leave) for leave in leaving]
        calls += [_stream(client, rng.randrange(1, 60), None) for _ in leaving]
        rng.shuffle(calls)
        answers = await asyncio.gather(*calls)
    return [answer for answer in answers if answer is not None]


async def _stream(client: httpx.AsyncClient, length: int, leave_after: int | None) -> int | None:
    """Tokens received up to the end; None for a client that leaves after so many chunks."""
    body = {
        "model": "tiny",
        "prompt": [length + i for i in range(length)],
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    usage, is_done, chunks = None, False, 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line:
                continue
            if leave_after is not None and chunks >= leave_after:
                return None
            is_done = line == "data: [DONE]"
            if not is_done:
                usage = json.loads(line.removeprefix("data: ")).get("usage")
            chunks += 1
    assert is_done and usage is not None
    tokens: int = usage["completion_tokens"]
    return tokens if leave_after is None else None  # several tokens may come as one chunk


def _wait_until_empty(server: RemoteServer) -> None:
    deadline = time.monotonic() + 20
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    while any(values := [server.metric(name) for name in names]):
        assert time.monotonic() < deadline, dict(zip(names, values, strict=True))
        time.sleep(0.05)


def _resident_bytes(server: RemoteServer) -> int:
    process = psutil.Process(server.process.pid)
    return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])
