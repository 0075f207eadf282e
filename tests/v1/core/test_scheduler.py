# SPDX-License-Identifier: Apache-2.0
"""The scheduling rule, stops and limits."""

import pytest

from tests.v1.core.utils import (
    EOS,
    Engine,
    create_request,
    create_requests,
    create_scheduler,
    full_spec,
    reference_tokens,
    run_all,
    window_spec,
)
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.messages import FinishReason
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import RequestStatus


def test_many_requests_have_their_solo_tokens() -> None:
    engine = run_all(create_scheduler(max_num_seqs=4), *create_requests(9, 13, max_tokens=7))
    assert max(map(len, engine.model.batches)) == 4


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 16, 64])
@pytest.mark.parametrize("specs", [(full_spec(),), (window_spec(6), full_spec())])
def test_chunks_of_any_size_give_the_same_tokens(budget: int, specs: tuple) -> None:
    scheduler = create_scheduler(*specs, max_num_batched_tokens=budget)
    run_all(scheduler, *create_requests(3, 21))


def test_budget_goes_to_running_requests_first() -> None:
    engine = Engine(create_scheduler(max_num_batched_tokens=10))
    engine.add(*create_requests(1, 8))
    engine.step()
    engine.add(create_request("late", 20))
    assert engine.step().num_scheduled_tokens == {"r0": 1, "late": 9}
    assert engine.step().num_scheduled_tokens == {"r0": 1, "late": 9}
    assert engine.step().num_scheduled_tokens == {"r0": 1, "late": 2}
    engine.run()
    engine.check_against_solo()


def test_threshold_caps_what_a_long_prompt_takes() -> None:
    engine = Engine(create_scheduler(long_prefill_token_threshold=5))
    engine.add(*create_requests(2, 12))
    assert engine.step().num_scheduled_tokens == {"r0": 5, "r1": 5}
    engine.run()
    engine.check_against_solo()


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it() -> None:
    engine = Engine(create_scheduler(enable_chunked_prefill=False, max_num_batched_tokens=64))
    engine.add(*create_requests(3, 30))
    assert engine.step().num_scheduled_tokens == {"r0": 30, "r1": 30}
    assert engine.step().num_scheduled_tokens == {"r0": 1, "r1": 1, "r2": 30}
    engine.run()
    engine.check_against_solo()


def test_no_outputs_leave_inside_a_prompt() -> None:
    engine = Engine(create_scheduler(max_num_batched_tokens=4))
    engine.add(create_request("a", 12, 1))
    for _ in range(2):
        engine.step()
        assert not engine.collected
    engine.step()
    assert len(engine.collected["a"].outputs) == 1


@pytest.mark.parametrize("prompt_len", [4, 8, 12, 13])
def test_the_same_prompt_again_hits_and_gives_the_same_tokens(prompt_len: int) -> None:
    engine = Engine(create_scheduler())
    for name in "ab":
        engine.add(create_request(name, [5] * prompt_len, 9))
        engine.run()
    engine.check_against_solo()
    hit = engine.collected["b"].outputs[0].num_cached_tokens
    assert hit == (prompt_len - 1) // 4 * 4


def test_the_same_requests_again_and_again_use_the_same_few_blocks() -> None:
    engine = Engine(create_scheduler(num_blocks=200))
    pool = engine.scheduler.kv_cache_manager.block_pool
    num_cached = []
    for i in range(6):
        # 8 tokens are two whole blocks: the last one is computed anew each time.
        names = [f"{name}{i}" for name in "abc"]
        engine.add(*(create_request(name, [5] * 8, 9, ignore_eos=True) for name in names))
        engine.run()
        num_cached.append(sum(block.key is not None for block in pool.blocks))
    engine.check_against_solo()
    assert num_cached == [4] * 6
    assert max(engine.model.pages) <= 3 * 5  # only blocks that were needed at once


def test_a_prompt_that_continues_an_answer_hits_the_answer() -> None:
    engine = Engine(create_scheduler())
    engine.add(create_request("a", 6, 8, ignore_eos=True))
    engine.run()
    prompt = engine.requests["a"].prompt_token_ids + engine.collected["a"].token_ids
    engine.add(create_request("b", [*prompt, 1]))
    engine.run()
    assert engine.collected["b"].outputs[0].num_cached_tokens == 12
    engine.check_against_solo()


def test_equal_prompts_in_one_step_both_have_the_solo_tokens() -> None:
    prompt = list(range(1, 15))
    run_all(create_scheduler(), *(create_request(name, prompt) for name in "abc"))


def test_salts_keep_requests_apart() -> None:
    engine = Engine(create_scheduler())
    for name, salt in (("a", None), ("b", "x"), ("c", "y"), ("d", "x")):
        engine.add(create_request(name, [3] * 9, salt=salt))
        engine.run()
    hits = {name: engine.collected[name].outputs[0].num_cached_tokens for name in "abcd"}
    assert hits == {"a": 0, "b": 0, "c": 0, "d": 8}


def test_skipping_the_cache_computes_the_whole_prompt() -> None:
    engine = Engine(create_scheduler())
    engine.add(create_request("a", [3] * 9))
    engine.run()
    engine.add(create_request("b", [3] * 9, skip_reading_prefix_cache=True))
    engine.run()
    assert engine.collected["b"].outputs[0].num_cached_tokens == 0


def test_prompt_logprobs_come_once_and_whole_despite_chunks_and_cache() -> None:
    engine = Engine(create_scheduler(max_num_batched_tokens=4))
    engine.add(create_request("a", [3] * 9))
    engine.run()
    engine.add(create_request("b", [3] * 9, prompt_logprobs=0))
    engine.run()
    first, *later = engine.collected["b"].outputs
    assert first.num_cached_tokens == 0
    assert first.new_prompt_logprobs is not None
    assert first.new_prompt_logprobs.sampled_ranks == list(range(1, 9))
    assert later and all(output.new_prompt_logprobs is None for output in later)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("specs", [(full_spec(),), (window_spec(6), full_spec())])
def test_shortage_preempts_and_changes_no_token(policy: str, specs: tuple) -> None:
    scheduler = create_scheduler(*specs, num_blocks=1 + 8 * len(specs), policy=policy)
    requests = create_requests(4, 9, max_tokens=14, ignore_eos=True)
    engine = run_all(scheduler, *requests)
    assert any(c.outputs[-1].num_preemptions for c in engine.collected.values())
    assert not engine.collected["r0"].outputs[-1].num_preemptions


def test_the_first_come_is_never_preempted_for_later_ones() -> None:
    engine = Engine(create_scheduler(num_blocks=9))
    engine.add(*create_requests(3, 9, max_tokens=14, ignore_eos=True))
    engine.run()
    ends = sorted(engine.collected, key=lambda r: engine.collected[r].outputs[-1].scheduled_ts)
    assert ends == ["r0", "r1", "r2"]


def test_a_higher_priority_takes_the_place_of_a_running_lower_one() -> None:
    engine = Engine(create_scheduler(num_blocks=9, policy="priority"))
    engine.add(create_request("low", 16, 12, priority=1, ignore_eos=True))
    engine.step()
    engine.add(create_request("high", 20, 4, priority=0, ignore_eos=True))
    step = engine.step()
    assert step.preempted_req_ids == {"low"} and list(step.num_scheduled_tokens) == ["high"]
    engine.run()
    engine.check_against_solo()
    assert engine.collected["low"].outputs[-1].num_preemptions >= 1


def test_a_displaced_request_gives_its_tokens_back_to_the_budget() -> None:
    scheduler = create_scheduler(policy="priority", max_num_seqs=1, max_num_batched_tokens=16)
    engine = Engine(scheduler)
    engine.add(create_request("low", 30, 12, priority=1))
    assert engine.step().num_scheduled_tokens == {"low": 16}
    engine.add(create_request("high", 20))
    # The lower one was given its last 14 prompt tokens first, and gives them back.
    assert engine.step().num_scheduled_tokens == {"high": 16}
    engine.run()
    engine.check_against_solo()


def test_equal_priorities_do_not_displace() -> None:
    engine = Engine(create_scheduler(policy="priority", max_num_seqs=1))
    engine.add(*create_requests(2))
    engine.run()
    assert not any(c.outputs[-1].num_preemptions for c in engine.collected.values())


def test_nobody_is_let_in_by_a_step_that_preempted() -> None:
    engine = Engine(create_scheduler(num_blocks=7))
    engine.add(*create_requests(2, 10, max_tokens=12, ignore_eos=True))
    while not (step := engine.step()).preempted_req_ids:
        pass
    assert not step.scheduled_new_reqs
    engine.run()
    engine.check_against_solo()


def test_a_returning_request_brings_its_tokens_and_hits_its_own_blocks() -> None:
    scheduler = create_scheduler()
    engine = Engine(scheduler)
    engine.add(create_request("a", 9, 12, ignore_eos=True))
    for _ in range(5):
        engine.step()
    assert not scheduler.reset_prefix_cache()
    scheduler.planner.preempt(scheduler.requests["a"])
    (new,) = engine.step().scheduled_new_reqs
    assert len(new.output_token_ids) == 5 and new.num_computed_tokens == 12
    engine.run()
    engine.check_against_solo()
    assert engine.collected["a"].outputs[-1].num_cached_tokens == 0


def test_resetting_running_requests_starts_them_over() -> None:
    engine = Engine(create_scheduler())
    engine.add(*create_requests(3))
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    engine.check_against_solo()


def test_window_groups_hold_a_bounded_number_of_blocks() -> None:
    engine = Engine(create_scheduler(window_spec(6), num_blocks=6, max_num_batched_tokens=4))
    engine.add(create_request("a", 40, 20, ignore_eos=True))
    while engine.scheduler.has_requests():
        engine.step()
        held = [b for b in engine.scheduler.kv_cache_manager.get_block_ids("a")[0] if b]
        assert len(held) <= 4
    engine.check_against_solo()


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "num_blocks"), [(0, 1, 99), (64, 1, 99), (20, 14, 9), (33, 1, 9)]
)
def test_what_can_never_run_is_refused_at_once(
    prompt_len: int, max_tokens: int, num_blocks: int
) -> None:
    scheduler = create_scheduler(num_blocks=num_blocks)
    with pytest.raises(VLLMValidationError, match=r"pass at least|even alone"):
        scheduler.add_request(create_request("a", prompt_len, max_tokens))
    assert not scheduler.has_requests()


def test_what_just_fits_runs_to_its_end_alone() -> None:
    engine = Engine(create_scheduler(num_blocks=9, watermark=0.5))
    engine.add(create_request("a", 20, 13, ignore_eos=True))
    engine.run()
    engine.check_against_solo()


def test_an_id_in_use_is_refused() -> None:
    scheduler = create_scheduler()
    scheduler.add_request(create_request("a", 3))
    with pytest.raises(VLLMValidationError, match="in use"):
        scheduler.add_request(create_request("a", 3))


def drawn_by(prompt: list[int], n: int) -> list[int]:
    """What the model draws after `prompt`, stops aside."""
    request = create_request("x", prompt, n, ignore_eos=True)
    return reference_tokens((full_spec(),), request, 64)


def finish(request_params: dict, prompt: list[int], n: int = 8) -> Engine:
    return run_all(create_scheduler(), create_request("a", prompt, n, **request_params))


def test_a_stop_token_ends_the_output_and_is_its_last_token() -> None:
    prompt = [1, 2, 3]
    drawn = drawn_by(prompt, 8)
    stop = drawn[4]
    engine = finish({"stop_token_ids": [stop], "ignore_eos": True}, prompt)
    output = engine.collected["a"].outputs[-1]
    assert engine.collected["a"].token_ids == drawn[: drawn.index(stop) + 1]
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, stop)


def test_a_first_token_that_stops_is_a_whole_answer() -> None:
    prompt = [1, 2, 3]
    engine = finish({"stop_token_ids": drawn_by(prompt, 1)}, prompt)
    assert engine.collected["a"].finish_reason is FinishReason.STOP
    assert len(engine.collected["a"].token_ids) == 1


def test_eos_ends_without_a_stop_reason_unless_ignored() -> None:
    prompt = next([i] for i in range(1, 50) if EOS in drawn_by([i], 6)[1:])
    drawn = drawn_by(prompt, 8)
    engine = finish({}, prompt)
    output = engine.collected["a"].outputs[-1]
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, None)
    assert engine.collected["a"].token_ids == drawn[: drawn.index(EOS) + 1]
    ignoring = finish({"ignore_eos": True}, prompt)
    assert ignoring.collected["a"].token_ids == drawn
    assert ignoring.collected["a"].finish_reason is FinishReason.LENGTH


def test_min_tokens_holds_every_stop_back() -> None:
    prompt = [1, 2, 3]
    drawn = drawn_by(prompt, 8)
    engine = finish({"stop_token_ids": drawn, "min_tokens": 5}, prompt)
    assert engine.collected["a"].token_ids == drawn[:5]


def test_the_context_length_ends_a_request() -> None:
    engine = Engine(create_scheduler(max_model_len=16))
    engine.add(create_request("a", 12, 50, ignore_eos=True))
    engine.run()
    assert engine.collected["a"].finish_reason is FinishReason.LENGTH
    assert len(engine.collected["a"].token_ids) == 4


def test_nothing_drawn_past_the_stop_is_emitted() -> None:
    scheduler = create_scheduler()
    scheduler.add_request(create_request("a", 3, 9, stop_token_ids=[7], logprobs=0))
    rows = LogprobsLists([[5], [7], [9]], [[-1.0]] * 3, [1, 1, 1])
    result = ModelRunnerOutput(sampled_token_ids={"a": [5, 7, 9]}, logprobs={"a": rows})
    (output,) = scheduler.update_from_output(scheduler.schedule(), result).outputs
    assert output.new_token_ids == [5, 7] and output.stop_reason == 7
    assert output.new_logprobs == LogprobsLists([[5], [7]], [[-1.0]] * 2, [1, 1])


def test_abort_frees_at_once_wherever_the_request_is() -> None:
    engine = Engine(create_scheduler(max_num_seqs=1))
    engine.add(*create_requests(2))
    engine.step()
    for name in ("r0", "r1"):
        (output,) = engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        assert output.finish_reason is FinishReason.ABORT
        engine.scheduler.check_integrity()
    assert engine.scheduler.finish_requests(["r0", "?"], RequestStatus.FINISHED_ABORTED) == []
    assert engine.scheduler.kv_cache_manager.usage == 0.0
    assert not engine.scheduler.has_requests()


def test_abort_in_flight_drops_the_step_even_if_the_id_returns() -> None:
    scheduler = create_scheduler()
    scheduler.add_request(create_request("a", 9))
    step = scheduler.schedule()
    scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    scheduler.add_request(create_request("a", [2] * 9))
    result = ModelRunnerOutput(sampled_token_ids={"a": [5]})
    assert scheduler.update_from_output(step, result).outputs == []
    step = scheduler.schedule()
    assert step.finished_req_ids == {"a"} and step.scheduled_new_reqs[0].req_id == "a"
    assert step.scheduled_new_reqs[0].num_computed_tokens == 0


def test_rows_are_dropped_with_the_next_step_that_runs() -> None:
    engine = Engine(create_scheduler())
    engine.add(create_request("a", 3, 1))
    engine.run()
    assert not engine.step().finished_req_ids
    engine.add(create_request("b", 3, 1))
    assert engine.step().finished_req_ids == {"a"}


def test_stats_tell_the_state_and_count_once() -> None:
    scheduler = create_scheduler(max_num_seqs=1)
    assert scheduler.make_stats().kv_cache_usage == 0.0
    engine = Engine(scheduler)
    engine.add(*create_requests(3))
    step = scheduler.schedule()
    stats = scheduler.update_from_output(step, engine.model.execute(step)).scheduler_stats
    assert stats is not None
    assert (stats.num_running_reqs, stats.num_waiting_reqs) == (1, 2)
    assert stats.kv_cache_usage == pytest.approx(3 / 99)
    assert stats.prefix_cache_stats.queries == 10
    assert scheduler.make_stats().prefix_cache_stats.queries == 0
    assert scheduler.max_concurrency == 99 / 16


def test_a_stall_ends_a_request_aloud_instead_of_waiting_for_ever() -> None:
    engine = Engine(create_scheduler(num_blocks=5))
    engine.add(*create_requests(2, 8))
    # No path of the engine takes blocks like this; the guard is for the bug that would.
    pool = engine.scheduler.kv_cache_manager.block_pool
    taken = pool.get_new_blocks(3)
    step = engine.scheduler.schedule()
    (output,) = engine.scheduler.update_from_output(step, ModelRunnerOutput()).outputs
    assert output.finish_reason is FinishReason.ERROR and "no progress" in str(output.error)
    pool.free_blocks(taken)
    engine.run()


def test_reserved_blocks_survive_load_preemption_and_reset() -> None:
    scheduler = create_scheduler(num_blocks=12)
    reserved = scheduler.kv_cache_manager.reserve_blocks(3)
    engine = run_all(scheduler, *create_requests(4, 9, max_tokens=14, ignore_eos=True))
    assert any(c.outputs[-1].num_preemptions for c in engine.collected.values())
    assert not {block.block_id for block in reserved} & engine.model.pages.keys()
    assert scheduler.reset_prefix_cache()
    scheduler.check_integrity()
