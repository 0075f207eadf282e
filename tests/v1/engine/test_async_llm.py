# SPDX-License-Identifier: Apache-2.0
"""The asynchronous front end with its core in a real child process."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TinyModel
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import (
    ConfigError,
    EngineDeadError,
    EngineOverloadedError,
    ModelLoadError,
    VLLMValidationError,
)
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM

TEXT = "the quick brown fox"
ENDLESS = {"max_tokens": 400, "ignore_eos": True}


def start(model: Path, **arguments: Any) -> AsyncLLM:
    values = {"dtype": "float32", "kv_cache_memory_bytes": "8M", "max_model_len": 512} | arguments
    return AsyncLLM.from_engine_args(AsyncEngineArgs(str(model), **values))


def serve(engine: AsyncLLM, scenario: Callable[[AsyncLLM], Awaitable[None]]) -> None:
    """Run a scenario and stop the engine, in an event loop of its own."""

    async def run() -> None:
        try:
            await asyncio.wait_for(scenario(engine), 60)
        finally:
            engine.shutdown()

    asyncio.run(run())


async def collect(engine: AsyncLLM, request_id: str, **params: Any) -> list[RequestOutput]:
    return [o async for o in engine.generate(TEXT, SamplingParams(**params), request_id)]


async def until_idle(engine: AsyncLLM) -> None:
    """Wait for the core's tables to be empty, a second at most."""
    for _ in range(50):
        if await engine.get_request_counts() == (0, 0):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"still busy: {await engine.get_request_counts()}")


def test_requests_streams_and_their_ends(tiny_model: TinyModel) -> None:
    async def scenario(engine: AsyncLLM) -> None:
        common: dict[str, Any] = {"max_tokens": 12, "seed": 5, "ignore_eos": True, "n": 2}
        (final,) = await collect(engine, "a", output_kind=RequestOutputKind.FINAL_ONLY, **common)
        deltas = await collect(engine, "b", output_kind=RequestOutputKind.DELTA, **common)
        joined = {0: "", 1: ""}
        for delta in deltas:
            for choice in delta.outputs:
                joined[choice.index] += choice.text
        assert joined == {c.index: c.text for c in final.outputs}
        assert final.outputs[0].token_ids != final.outputs[1].token_ids
        assert [o.finished for o in deltas] == [False] * (len(deltas) - 1) + [True]

        # A consumer that leaves, a task that is cancelled, an abort by id.
        params = SamplingParams(**ENDLESS)
        left = engine.generate(TEXT, params, "left")
        await anext(left)
        await left.aclose()
        task = asyncio.create_task(collect(engine, "cancelled", n=4, **ENDLESS))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        aborted = asyncio.create_task(collect(engine, "aborted", **ENDLESS))
        await asyncio.sleep(0.05)
        await engine.abort("aborted")
        assert (await aborted)[-1].outputs[0].finish_reason == "abort"
        await until_idle(engine)
        assert engine.num_unfinished_requests == 0

        # Refusals leave nothing behind, and the next request runs.
        for prompt, wrong in (
            ([999_999], SamplingParams()),
            (TEXT, SamplingParams(max_tokens=600)),
            (TEXT, SamplingParams(structured_outputs=StructuredOutputsParams(regex="[a"))),
        ):
            with pytest.raises(VLLMValidationError):
                await anext(engine.generate(prompt, wrong, "wrong"))
        with pytest.raises(VLLMValidationError, match="cannot be called"):
            await engine.collective_rpc("load_model")
        assert await engine.reset_prefix_cache() is True
        await engine.check_health()
        choice = StructuredOutputsParams(choice=["answer", "number"])
        (told,) = await collect(
            engine,
            "grammar",
            structured_outputs=choice,
            max_tokens=20,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        assert told.outputs[0].text in ("answer", "number")

        # A drain lets what runs end and takes nothing new.
        running = asyncio.create_task(collect(engine, "last", max_tokens=20, ignore_eos=True))
        await asyncio.sleep(0.05)
        assert await engine.drain(30)
        assert len((await running)[-1].outputs[0].token_ids) == 20
        with pytest.raises(EngineDeadError, match="shutting down"):
            await collect(engine, "late")

    serve(start(tiny_model()), scenario)


def test_a_bounded_queue_refuses_at_once_and_serves_the_rest(tiny_model: TinyModel) -> None:
    async def scenario(engine: AsyncLLM) -> None:
        params: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}
        params["output_kind"] = RequestOutputKind.FINAL_ONLY
        with pytest.raises(VLLMValidationError, match="ever takes"):
            await collect(engine, "many", n=6, **params)
        with pytest.raises(VLLMValidationError, match="scheduling_policy"):
            await anext(engine.generate(TEXT, SamplingParams(**params), "first", priority=-1))
        started = time.monotonic()
        tasks = [asyncio.create_task(collect(engine, str(i), **params)) for i in range(50)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - started < 30
        kinds = {type(r) for r in results}
        assert kinds == {EngineOverloadedError, list}, kinds
        refused = [r for r in results if isinstance(r, EngineOverloadedError)]
        served = [r for r in results if isinstance(r, list)]
        assert (len(refused), len(served)) == (45, 5)
        assert all(len(r[-1].outputs[0].token_ids) == 8 for r in served)
        assert len(await collect(engine, "after", n=5, **params)) == 1

    serve(start(tiny_model(), max_num_seqs=1, max_waiting_requests=4), scenario)


def test_a_stopped_core_is_hung_and_a_killed_one_is_dead(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENGINE_HANG_TIMEOUT_S", "1.5")

    async def scenario(engine: AsyncLLM) -> None:
        await engine.check_health()
        os.kill(engine.client.pid, signal.SIGSTOP)
        await asyncio.sleep(2)
        with pytest.raises(EngineDeadError, match="has not answered"):
            await engine.check_health()
        with pytest.raises(EngineDeadError, match="has not answered"):
            await collect(engine, "hung")
        os.kill(engine.client.pid, signal.SIGCONT)
        await asyncio.sleep(1)
        await engine.check_health()

        pending = [asyncio.create_task(collect(engine, str(i), **ENDLESS)) for i in range(3)]
        call = asyncio.create_task(engine.get_request_counts())
        await asyncio.sleep(0)
        killed = time.monotonic()
        os.kill(engine.client.pid, signal.SIGKILL)
        for task in (*pending, call):
            with pytest.raises(EngineDeadError, match="signal 9"):
                await task
        assert time.monotonic() - killed < 2
        assert engine.errored
        assert not engine.is_running
        with pytest.raises(EngineDeadError):
            await engine.check_health()

    serve(start(tiny_model()), scenario)


def test_a_start_that_fails_says_why_and_leaves_nothing(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sockets need a short path, shorter than `tmp_path`.
    folder = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", folder)
    with pytest.raises(ConfigError, match="max_model_len=512 needs"):
        start(tiny_model(), kv_cache_memory_bytes=100)
    with pytest.raises(ModelLoadError, match=r"lm_head|embed"):
        start(tiny_model(), hf_overrides={"vocab_size": 600})
    with pytest.raises(ConfigError, match="max_model_len"):
        start(tiny_model(), max_model_len=10**6)
    os.rmdir(folder)


def test_the_core_ends_with_a_parent_that_was_killed(tiny_model: TinyModel, tmp_path: Path) -> None:
    # The script has no __main__ guard: nothing imports it a second time.
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(
            {str(tiny_model())!r}, kv_cache_memory_bytes="4M", max_model_len=64))
        print(engine.client.pid, flush=True)
        time.sleep(60)
        """)
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment, text=True
    ) as parent:
        assert parent.stdout is not None
        core_pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _is_running(core_pid):
        time.sleep(0.05)
    assert not _is_running(core_pid)


def _is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
