# SPDX-License-Identifier: Apache-2.0
"""The core's step: one request's failure ends that request, an interrupt leaves order."""

from typing import Any

import pytest

from tests.conftest import TinyModel
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.messages import EngineCoreOutput, EngineCoreRequest, FinishReason


@pytest.fixture
def core(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> EngineCore:
    monkeypatch.setenv("VLLM_CHECK_INTEGRITY", "1")
    args = EngineArgs(
        str(tiny_model()), dtype="float32", kv_cache_memory_bytes="2M", max_model_len=64
    )
    return EngineCore(args.create_engine_config(), log_stats=True)


def request(request_id: str, **params: Any) -> EngineCoreRequest:
    values = {"max_tokens": 4, "temperature": 0.0, "seed": 0, "ignore_eos": True} | params
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=[7, 8, 9, 10 + len(request_id)],
        sampling_params=SamplingParams(**values),
        arrival_time=0.0,
    )


def run(core: EngineCore) -> dict[str, list[EngineCoreOutput]]:
    told: dict[str, list[EngineCoreOutput]] = {}
    while core.has_requests():
        for output in core.step().outputs:
            told.setdefault(output.request_id, []).append(output)
    return told


def tokens(outputs: list[EngineCoreOutput]) -> list[int]:
    return [i for output in outputs for i in output.new_token_ids]


def test_requests_run_to_their_end(core: EngineCore) -> None:
    core.add_request(request("a"))
    core.add_request(request("bb", max_tokens=2))
    told = run(core)
    assert (len(tokens(told["a"])), len(tokens(told["bb"]))) == (4, 2)
    assert told["a"][-1].finish_reason is FinishReason.LENGTH
    assert core.get_request_counts() == (0, 0)


def test_a_step_that_raises_ends_the_culprit_alone(core: EngineCore) -> None:
    for name in ("a", "bb", "ccc"):
        core.add_request(request(name))
    alone = {name: tokens(outputs) for name, outputs in run(core).items()}
    execute = core.executor.execute_model

    def failing(scheduler_output: Any, grammar_output: Any) -> Any:
        if "bb" in scheduler_output.num_scheduled_tokens:
            raise RuntimeError("secret detail")
        return execute(scheduler_output, grammar_output)

    core.executor.execute_model = failing  # type: ignore[method-assign]
    for name in ("a", "bb", "ccc"):
        core.add_request(request(name))
    told = run(core)
    assert told["bb"][-1].finish_reason is FinishReason.ERROR
    assert "secret detail" not in (told["bb"][-1].error or "")
    for name in ("a", "ccc"):
        assert tokens(told[name]) == alone[name]
    core.scheduler.check_integrity()


def test_an_interrupt_in_a_step_leaves_requests_that_can_be_aborted(core: EngineCore) -> None:
    execute = core.executor.execute_model

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    core.add_request(request("a"))
    core.add_request(request("bb"))
    core.executor.execute_model = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.executor.execute_model = execute  # type: ignore[method-assign]
    core.abort_requests(["a", "bb"])
    run(core)
    core.scheduler.check_integrity()
    core.add_request(request("a"))
    assert len(tokens(run(core)["a"])) == 4


@pytest.mark.parametrize("names", [["a"], ["a", "bb"]])
def test_an_interrupted_step_can_be_stepped_again(core: EngineCore, names: list[str]) -> None:
    for name in names:
        core.add_request(request(name))
    alone = {name: tokens(told) for name, told in run(core).items()}
    execute = core.executor.execute_model

    def interrupted(*args: Any) -> Any:
        execute(*args)
        raise KeyboardInterrupt

    for name in names:
        core.add_request(request(name))
    outputs = core.step().outputs
    core.executor.execute_model = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.executor.execute_model = execute  # type: ignore[method-assign]
    core.scheduler.check_integrity()
    told = run(core)
    for name in names:
        first = [t for o in outputs if o.request_id == name for t in o.new_token_ids]
        assert first + tokens(told[name]) == alone[name]
        assert told[name][-1].finish_reason is FinishReason.LENGTH


def test_the_length_may_be_left_to_the_cache(tiny_model: TinyModel) -> None:
    args = EngineArgs(
        str(tiny_model()), dtype="float32", num_gpu_blocks_override=9, max_model_len="auto"
    )
    core = EngineCore(args.create_engine_config(), log_stats=False)
    assert core.max_model_len == 8 * 16
    core.add_request(request("a", max_tokens=124))
    assert len(tokens(run(core)["a"])) == 124


def test_only_listed_calls_come_from_outside(core: EngineCore) -> None:
    assert core.call_utility("reset_prefix_cache", [False]) is True
    assert core.call_utility("collective_rpc", ["check_health"]) == [None]
    for method, args in (
        ("shutdown", []),
        ("collective_rpc", ["load_model"]),
        ("collective_rpc", []),
        ("__class__", []),
    ):
        with pytest.raises(VLLMValidationError, match="cannot be called"):
            core.call_utility(method, args)
