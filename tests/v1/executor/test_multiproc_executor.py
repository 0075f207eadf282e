# SPDX-License-Identifier: Apache-2.0
"""Two ranks in processes of their own: right, and gone when they should be."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import TinyModel
from tests.utils import hf_logprobs, random_token_ids
from tests.v1.executor.utils import check, generate, make_config, start
from vllm import LLM, SamplingParams
from vllm.exceptions import ConfigError, EngineDeadError, VLLMValidationError
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

PROMPTS = {str(n): random_token_ids(n, seed=n) for n in (1, 17, 40)}
NUM_TOKENS = 6

# As a user writes it: no `if __name__ == "__main__"`.
SCRIPT = """
import json, sys, time
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], tensor_parallel_size=2, dtype="float32", max_model_len=128,
          kv_cache_memory_bytes=2**21, disable_log_stats=True)
params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
outputs = llm.generate([{"prompt_token_ids": json.loads(sys.argv[2])}], params, use_tqdm=False)
executor = llm.llm_engine.model_executor
print(json.dumps([list(outputs[0].outputs[0].token_ids), [w.pid for w in executor.workers]]))
sys.stdout.flush()
time.sleep(60)
"""


def wait_gone(pids: list[int], timeout_s: float = 10.0) -> None:
    """Until no process of that id is left, dead ones that wait for their parent aside."""
    deadline = time.monotonic() + timeout_s
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < deadline, f"of {pids} some still live"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_steps_calls_failures_and_the_death_of_a_rank(tiny_model: TinyModel) -> None:
    path = tiny_model("qwen3")
    executor, scheduler = start(make_config(path, "qwen3", chunk=16, tp=2, backend="mp"))
    assert isinstance(executor, MultiprocExecutor)
    pids, folder = [worker.pid for worker in executor.workers], executor._folder

    check(path, PROMPTS, generate(executor, scheduler, PROMPTS, NUM_TOKENS), NUM_TOKENS)
    again = generate(executor, scheduler, PROMPTS, NUM_TOKENS, prompt_logprobs=None)
    check(path, PROMPTS, again, NUM_TOKENS)
    assert again["40"].num_cached_tokens >= 32

    assert executor.collective_rpc("check_health") == [None, None]
    specs = executor.collective_rpc("get_kv_cache_specs")
    assert specs[0] == specs[1] and specs[0]["model.layers.0.self_attn.attn"].num_kv_heads == 1
    with pytest.raises(VLLMValidationError, match="functions cannot go; pass the name"):
        executor.collective_rpc(lambda worker: worker)
    with pytest.raises(VLLMValidationError, match="get_model: only numbers, texts"):
        executor.collective_rpc("get_model")
    with pytest.raises(RuntimeError, match="AttributeError"):
        executor.collective_rpc("no_such_method")

    unknown = SchedulerOutput(
        scheduled_cached_reqs=[CachedRequestData("nobody", None, 0)],
        num_scheduled_tokens={"nobody": 1},
    )
    with pytest.raises(RuntimeError, match="KeyError"):
        executor.execute_model(unknown)
    executor.check_health()  # all ranks failed alike: none is lost
    check(path, PROMPTS, generate(executor, scheduler, PROMPTS, NUM_TOKENS), NUM_TOKENS)

    os.kill(pids[1], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(EngineDeadError, match=r"rank 1 ended unexpectedly \(signal 9\)"):
        generate(executor, scheduler, PROMPTS, NUM_TOKENS)
    assert time.monotonic() - started < 10
    for call in (executor.check_health, executor.determine_available_memory):
        with pytest.raises(EngineDeadError, match="rank 1 ended"):
            call()
    wait_gone(pids)
    assert not folder.exists()
    executor.shutdown()


def test_a_rank_that_hangs_ends_all(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENGINE_HANG_TIMEOUT_S", "2")
    executor, scheduler = start(make_config(tiny_model("llama"), "llama", tp=2, backend="mp"))
    assert isinstance(executor, MultiprocExecutor)
    pids = [worker.pid for worker in executor.workers]
    with pytest.raises(TimeoutError, match="check_health: no answer from all ranks"):
        os.kill(pids[1], signal.SIGSTOP)
        executor.collective_rpc("check_health", timeout=0.3)
    os.kill(pids[1], signal.SIGCONT)
    generate(executor, scheduler, PROMPTS, 2)  # the late answer is nobody's

    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(EngineDeadError, match="rank 1 hangs: no sign of life for"):
        generate(executor, scheduler, PROMPTS, NUM_TOKENS)
    wait_gone(pids)


def test_what_stops_a_rank_at_start_reaches_the_caller(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = tiny_model("llama", intermediate_size=111)
    with pytest.raises(ConfigError, match=r"gate_up_proj.*111 does not divide by tensor_par"):
        start(make_config(path, "llama", tp=2, backend="mp"))
    assert not [p for p in psutil.Process().children() if "worker_main" in " ".join(p.cmdline())]


def test_an_engine_in_this_process_says_that_it_is_dead(tiny_model: TinyModel) -> None:
    llm = LLM(
        str(tiny_model("llama")),
        tensor_parallel_size=2,
        dtype="float32",
        max_model_len=128,
        kv_cache_memory_bytes=2**21,
    )
    executor = llm.llm_engine.model_executor
    assert isinstance(executor, MultiprocExecutor)
    pids = [worker.pid for worker in executor.workers]
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS.values()]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    assert len(llm.generate(prompts, params, use_tqdm=False)) == len(prompts)
    os.kill(pids[0], signal.SIGKILL)
    for _ in range(2):
        # Not a request's failure: with several of them each would be tried alone.
        with pytest.raises(EngineDeadError, match=r"rank 0 ended unexpectedly \(signal 9\)"):
            llm.generate(prompts, params, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    wait_gone(pids)


def test_an_engine_that_cannot_start_leaves_no_rank(tiny_model: TinyModel) -> None:
    before = psutil.Process().children()
    config = make_config(tiny_model("llama"), "llama", tp=2, backend="mp", kv_cache_memory_bytes=9)
    with pytest.raises(ConfigError, match="KV cache") as caught:
        EngineCore(config, log_stats=False)
    # Also while somebody holds the error, and with it the frames of the start.
    assert psutil.Process().children() == before, caught


def test_a_plain_script_works_and_leaves_no_orphan_when_killed(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    path, prompt = tiny_model("llama"), random_token_ids(20, seed=3)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(path), json.dumps(prompt)],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    with process, process.stdout:
        try:
            token_ids, pids = json.loads(process.stdout.readline())
        finally:
            process.kill()
    best = hf_logprobs(path, prompt + token_ids)[len(prompt) - 1 : -1].argmax(-1)
    assert token_ids == best.tolist()
    wait_gone(pids)
    assert not list(tmp_path.glob("vllm-*")), "the folder with the sockets is left"
