# SPDX-License-Identifier: Apache-2.0
"""`vllm serve --tensor-parallel-size 2`, through the OpenAI client."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import psutil
import pytest

from tests.conftest import TinyModel
from tests.entrypoints.openai.remote_server import RemoteServer
from tests.utils import hf_logprobs, random_token_ids
from tests.v1.executor.utils import TOLERANCE

OPTIONS = ("--tensor-parallel-size=2", "--dtype=float32")
LONG = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 480, "extra_body": {"ignore_eos": True}}


def ranks_of(server: RemoteServer) -> list[psutil.Process]:
    """The ranks' processes, children of the engine core's."""
    return [
        child
        for child in server.engine_process.children()
        if any("worker_main" in part for part in child.cmdline())
    ]


def assert_gone(processes: list[psutil.Process]) -> None:
    """None of them is left after a while, dead ones that nobody has asked about aside."""
    deadline = time.monotonic() + 10
    while left := [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, f"{left} outlive the server"
        time.sleep(0.05)


@contextmanager
def a_server(path: Path, log: Path) -> Iterator[tuple[RemoteServer, list[psutil.Process]]]:
    """A server on two ranks, and the ranks; whatever becomes of it, none of them is left."""
    with RemoteServer(path, log, *OPTIONS) as server:
        ranks = ranks_of(server)
        assert len(ranks) == 2
        try:
            yield server, ranks
        except BaseException:
            for rank in ranks:
                if rank.is_running():
                    rank.kill()
            raise
        assert_gone(ranks)


def assert_red_and_over(server: RemoteServer) -> None:
    """/health says 503 at first, then the process ends with status 1."""
    deadline = time.monotonic() + 10
    while (status := server.health()) == 200:
        assert time.monotonic() < deadline, "/health stays green"
        time.sleep(0.05)
    assert status == 503
    assert server.process.wait(20) == 1


def test_a_server_on_two_ranks(tiny_model: TinyModel, tmp_path: Path) -> None:
    path, prompt = tiny_model("qwen3"), random_token_ids(30, seed=5)
    with RemoteServer(path, tmp_path / "log", *OPTIONS) as server:
        ranks = ranks_of(server)
        assert len(ranks) == 2
        answer = server.client().completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=5,
            temperature=0,
            logprobs=1,
            extra_body={"ignore_eos": True},
        )
        assert answer.usage is not None and answer.usage.completion_tokens == 5
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs is not None
        # The next token's best logprob needs no text: the first is the prompt's own.
        best = float(hf_logprobs(path, prompt)[-1].max())
        assert logprobs.token_logprobs[0] == pytest.approx(best, abs=TOLERANCE)
    assert_gone(ranks)


def test_a_rank_killed_in_a_step_ends_the_server_with_every_request_answered(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    refusals: list[openai.APIStatusError] = []

    def ask(client: openai.OpenAI) -> None:
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(**LONG)
        refusals.append(refused.value)

    with a_server(tiny_model("qwen3"), tmp_path / "log") as (server, ranks):
        with server.client() as client:
            stream = client.completions.create(stream=True, **LONG)
            next(stream)
            ranks[1].suspend()  # the other rank waits in a collective from here on
            waiting = threading.Thread(target=ask, args=(client,))
            waiting.start()
            ranks[1].kill()
            with pytest.raises(openai.APIError, match="engine"):
                list(stream)
            waiting.join(20)
        assert_red_and_over(server)
    assert [error.status_code for error in refusals] == [503]
    assert "rank 1 ended unexpectedly (signal 9)" in server.log.read_text()


def test_a_rank_killed_while_there_is_nothing_to_do_ends_the_server(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    with a_server(tiny_model("qwen3"), tmp_path / "log") as (server, ranks):
        ranks[0].kill()
        assert_red_and_over(server)
    text = server.log.read_text()
    assert "rank 0 ended unexpectedly (signal 9)" in text and "Traceback" not in text


@pytest.mark.parametrize("victim", ["core", "server"])
def test_no_rank_outlives_a_killed_parent(
    tiny_model: TinyModel, tmp_path: Path, victim: str
) -> None:
    with a_server(tiny_model("qwen3"), tmp_path / "log") as (server, ranks):
        core = server.engine_process
        if victim == "core":
            core.kill()
            assert_red_and_over(server)
        else:
            server.process.kill()
            server.process.wait()
            assert_gone([core])
        assert_gone(ranks)


def test_a_server_does_not_take_ranks_that_others_start(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    option = "--distributed-executor-backend=external_launcher"
    server = RemoteServer(tiny_model("qwen3"), log, "-tp=2", option)
    assert server.process.wait(60) != 0
    text = log.read_text()
    assert "a server starts its ranks itself: pass 'mp'" in text and "Traceback" not in text
