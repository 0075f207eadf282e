# SPDX-License-Identifier: Apache-2.0
"""One bad request harms nobody."""

import pytest

from tests.v1.core.utils import (
    Engine,
    StepFailure,
    create_request,
    create_requests,
    create_scheduler,
)
from vllm.v1.engine.messages import FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus


def engine_with(*requests, **kwargs) -> Engine:  # type: ignore[no-untyped-def]
    engine = Engine(create_scheduler(**kwargs))
    engine.add(*requests)
    return engine


@pytest.mark.parametrize("num_blocks", [100, 13])
@pytest.mark.parametrize("budget", [64, 5])
@pytest.mark.parametrize("culprit", ["r0", "r2", "r4"])
def test_a_poisoned_request_ends_alone(culprit: str, budget: int, num_blocks: int) -> None:
    requests = create_requests(5, 9, max_tokens=6, ignore_eos=True)
    engine = engine_with(*requests, num_blocks=num_blocks, max_num_batched_tokens=budget)
    engine.model.poison.add(culprit)
    engine.run()
    assert engine.collected[culprit].finish_reason is FinishReason.ERROR
    assert engine.collected[culprit].outputs[-1].error == "poisoned"
    engine.check_against_solo(*(r.request_id for r in requests if r.request_id != culprit))


@pytest.mark.parametrize("n", [1, 3])
def test_a_step_that_is_restarted_ends_nobody(n: int) -> None:
    requests = create_requests(n, 9, max_tokens=6, ignore_eos=True)
    engine = engine_with(*requests)
    for _ in range(2):
        engine.step()
    engine.model.poison.add("r0")
    step = engine.scheduler.schedule()
    with pytest.raises(StepFailure):
        engine.model.execute(step)
    engine.model.poison.clear()
    engine.scheduler.restart_step(step)
    engine.scheduler.check_integrity()
    assert len(engine.step().num_scheduled_tokens) == n  # nobody is suspected
    engine.run()
    engine.check_against_solo()


def test_all_poisoned_all_end() -> None:
    engine = engine_with(*create_requests(4))
    engine.model.poison |= {f"r{i}" for i in range(4)}
    engine.run(max_steps=10)
    assert all(c.finish_reason is FinishReason.ERROR for c in engine.collected.values())


def test_a_failure_midway_keeps_what_was_told() -> None:
    engine = engine_with(*create_requests(3, 9, max_tokens=8, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.model.poison.add("r1")
    engine.run()
    engine.check_against_solo("r0", "r2")
    assert engine.collected["r1"].token_ids == engine.reference("r1")[:3]


def test_suspects_run_alone_until_each_has_drawn_a_token() -> None:
    engine = engine_with(*create_requests(3, 9), max_num_batched_tokens=32)
    step = engine.scheduler.schedule()
    engine.scheduler.recover_from_failed_step(step, "bad luck")
    engine.add(create_request("late", 5))
    batches = [list(engine.step().num_scheduled_tokens) for _ in range(4)]
    assert batches == [["r0"], ["r1"], ["r2"], ["r0", "r1", "r2", "late"]]
    engine.run()
    engine.check_against_solo()


def test_a_suspect_in_chunks_stays_alone_to_its_first_token() -> None:
    engine = engine_with(*create_requests(2, 9), max_num_batched_tokens=12)
    engine.scheduler.recover_from_failed_step(engine.scheduler.schedule(), "bad luck")
    engine.scheduler.planner.limits = create_scheduler(max_num_batched_tokens=4).limits
    batches = [list(engine.step().num_scheduled_tokens) for _ in range(6)]
    assert batches == [["r0"]] * 3 + [["r1"]] * 3


def test_others_make_room_for_the_one_that_runs_alone_even_if_it_came_last() -> None:
    engine = engine_with(*create_requests(2, 12, max_tokens=9, ignore_eos=True), num_blocks=7)
    engine.step()
    planner = engine.scheduler.planner
    plan = planner.plan(alone=engine.scheduler.requests["r1"])
    step = planner.build(plan)
    assert list(step.num_scheduled_tokens) == ["r1"] and step.preempted_req_ids == {"r0"}


def test_a_suspect_that_is_aborted_lets_the_others_go_on() -> None:
    engine = engine_with(*create_requests(2, 9))
    engine.scheduler.recover_from_failed_step(engine.scheduler.schedule(), "bad luck")
    engine.scheduler.finish_requests("r0", RequestStatus.FINISHED_ABORTED)
    engine.run()
    engine.check_against_solo("r1")


def test_a_failed_step_leaves_nothing_in_the_prefix_cache() -> None:
    engine = engine_with(create_request("a", [3] * 9), create_request("b", [4] * 9))
    engine.step()
    # Both hold cached blocks; the second step fails after writing rubbish.
    engine.model.poison.add("b")
    engine.step()
    probe = create_request("probe", [3] * 9)
    engine.scheduler.finish_requests(["a", "b"], RequestStatus.FINISHED_ABORTED)
    engine.add(probe)
    engine.run()
    assert engine.collected["probe"].outputs[0].num_cached_tokens == 0
    engine.check_against_solo("probe")


def test_rows_named_by_a_failed_step_are_named_again() -> None:
    engine = engine_with(create_request("a", 3, 1), create_request("b", 3, 9, ignore_eos=True))
    engine.step()
    step = engine.scheduler.schedule()
    assert step.finished_req_ids == {"a"}
    engine.add(create_request("c", 3))
    engine.scheduler.recover_from_failed_step(step, "bad luck")
    assert engine.scheduler.schedule().finished_req_ids == {"a", "b"}


def test_a_row_that_fails_ends_that_request_and_distrusts_its_blocks() -> None:
    engine = engine_with(
        create_request("a", [3] * 9), create_request("b", [4] * 9), max_num_batched_tokens=8
    )
    engine.step()  # two blocks of "a" are computed and cached; the last token fails
    engine.model.broken.add("a")
    engine.run()
    assert engine.collected["a"].outputs[-1].error == "not finite"
    engine.check_against_solo("b")
    engine.add(create_request("again", [3] * 9))
    engine.run()
    assert engine.collected["again"].outputs[0].num_cached_tokens == 0
    engine.check_against_solo("again")


@pytest.mark.parametrize(
    ("budget", "sampled", "word"), [(64, {}, "no token"), (4, {"a": [5]}, "premature")]
)
def test_a_token_missing_or_too_early_is_an_error_of_that_request(
    budget: int, sampled: dict[str, list[int]], word: str
) -> None:
    scheduler = create_scheduler(max_num_batched_tokens=budget)
    scheduler.add_request(create_request("a", 9))
    result = ModelRunnerOutput(sampled_token_ids=sampled)
    (output,) = scheduler.update_from_output(scheduler.schedule(), result).outputs
    assert output.finish_reason is FinishReason.ERROR and word in str(output.error)
    assert not scheduler.has_requests()
