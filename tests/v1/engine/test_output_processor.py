# SPDX-License-Identifier: Apache-2.0
"""From the core's tokens to callers' outputs, with a scripted core."""

import asyncio

import pytest

from tests.v1.engine.utils import PIECES, make_output_processor, make_request, outputs, token
from vllm.exceptions import EngineDeadError, RequestFailedError, VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.collector import RequestOutputCollector
from vllm.v1.engine.messages import EngineCoreOutput, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import IterationStats
from vllm.v1.outputs import LogprobsLists

EOS = len(PIECES) + 1


def step(processor: OutputProcessor, *items: EngineCoreOutput) -> list[RequestOutput]:
    return processor.process_outputs(outputs(*items)).request_outputs


def script(processor: OutputProcessor, ids: list[int], **last: object) -> list[RequestOutput]:
    """One token a step; the last step also carries `last`."""
    told = []
    for i, token_id in enumerate(ids):
        told += step(processor, token(token_id, **(last if i == len(ids) - 1 else {})))
    return told


def test_cumulative_outputs_grow() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(), "AB")
    told = script(processor, [2, 3], finish_reason=FinishReason.LENGTH)
    assert [o.outputs[0].text for o in told] == ["C", "CDEF"]
    assert [o.finished for o in told] == [False, True]
    assert (told[-1].prompt, told[-1].prompt_token_ids) == ("AB", [0, 1])
    assert told[-1].outputs[0].finish_reason == "length"
    assert not processor.has_unfinished_requests()


def test_deltas_join_to_the_whole() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(output_kind=RequestOutputKind.DELTA, stop=["DEFGX"]), None)
    told = script(processor, [2, 3, 4, 5], finish_reason=FinishReason.LENGTH)
    assert [o.outputs[0].text for o in told] == ["C", "DEFGHI"]
    assert [o.outputs[0].token_ids for o in told] == [[2], [3, 4, 5]]


def test_final_only_tells_once() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(output_kind=RequestOutputKind.FINAL_ONLY), None)
    told = script(processor, [2, 3], finish_reason=FinishReason.LENGTH)
    assert [o.outputs[0].text for o in told] == ["CDEF"]


def test_a_stop_string_ends_the_request_and_aborts_it_in_the_core() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(stop=["EFG"]), None)
    step(processor, token(3))
    processed = processor.process_outputs(outputs(token(4)))
    completion = processed.request_outputs[0].outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == (
        "D",
        "stop",
        "EFG",
    )
    assert processed.reqs_to_abort == ["r"]
    assert step(processor, token(5)) == []


def test_a_stop_string_in_the_last_token_wins_over_length() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(stop=["G"]), None)
    (told,) = script(processor, [4], finish_reason=FinishReason.LENGTH)
    completion = told.outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("", "stop", "G")


def test_an_end_token_as_the_first_token_gives_empty_text() -> None:
    processor = make_output_processor()
    request = make_request()
    request.sampling_params.eos_token_ids = [EOS]
    processor.add_request(request, None)
    (told,) = script(processor, [EOS], finish_reason=FinishReason.STOP)
    completion = told.outputs[0]
    assert (completion.text, completion.token_ids) == ("", [EOS])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)


def test_a_grammar_that_is_complete_keeps_its_last_token() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(), None)
    told = script(processor, [2, 3], finish_reason=FinishReason.STOP)
    assert told[-1].outputs[0].text == "CDEF"


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_n_outputs_come_together_under_their_indices(kind: RequestOutputKind) -> None:
    processor = make_output_processor()
    children = processor.add_request(make_request(n=3, output_kind=kind), None)
    assert [c.request_id for c in children] == ["0_r", "1_r", "2_r"]
    assert all(c.sampling_params.n == 1 for c in children)
    assert len({c.sampling_params.seed for c in children}) == 3
    assert children[0].sampling_params.seed == 7
    done = {"finish_reason": FinishReason.LENGTH}
    told = step(processor, token(0, "2_r"), token(1, "0_r", **done))
    told += step(processor, token(2, "2_r", **done), token(3, "1_r"))
    told += step(processor, token(4, "1_r", **done))
    assert [o.finished for o in told].count(True) == 1
    assert told[-1].finished
    texts: dict[int, str] = {}
    finished: list[int] = []
    for message in told:
        for completion in message.outputs:
            is_delta = kind is RequestOutputKind.DELTA
            before = texts.get(completion.index, "") if is_delta else ""
            texts[completion.index] = before + completion.text
    finished = [c.index for o in told for c in o.outputs if c.finish_reason]
    assert texts == {0: "B", 1: "DEFG", 2: "AC"}
    if kind is not RequestOutputKind.CUMULATIVE:
        assert sorted(finished) == [0, 1, 2]
    else:
        assert [c.index for c in told[-1].outputs] == [0, 1, 2]


def test_prompt_logprobs_are_computed_by_the_first_of_n_only() -> None:
    children = make_output_processor().add_request(make_request(n=2, prompt_logprobs=1), None)
    assert [c.sampling_params.prompt_logprobs for c in children] == [1, None]


def test_logprobs_hold_the_sampled_token_its_rank_and_the_likeliest() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(logprobs=2, prompt_logprobs=1), None)
    rows = LogprobsLists([[3, 0, 1]], [[-4.0, -0.5, -1.0]], [9])
    prompt_rows = LogprobsLists([[1, 1]], [[-0.25, -0.25]], [1])
    (told,) = step(
        processor,
        token(
            3,
            new_logprobs=rows,
            new_prompt_logprobs=prompt_rows,
            finish_reason=FinishReason.LENGTH,
        ),
    )
    completion = told.outputs[0]
    assert completion.cumulative_logprob == -4.0
    (position,) = completion.logprobs or []
    assert [(i, p.logprob, p.rank, p.decoded_token) for i, p in position.items()] == [
        (3, -4.0, 9, "DEF"),
        (0, -0.5, 1, "A"),
        (1, -1.0, 2, "B"),
    ]
    assert told.prompt_logprobs is not None
    assert told.prompt_logprobs[0] is None
    assert told.prompt_logprobs[1] is not None
    assert told.prompt_logprobs[1][1].decoded_token == "B"


def test_an_id_in_use_is_refused_also_among_children() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(n=2), None)
    for request_id in ("r", "0_r"):
        with pytest.raises(VLLMValidationError, match="in use"):
            processor.add_request(make_request(request_id), None)


def test_an_abort_ends_all_outputs_and_tells_the_core_of_those_that_run() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(n=2), None)
    step(processor, token(0, "0_r", finish_reason=FinishReason.LENGTH), token(1, "1_r"))
    core_ids, told = processor.abort_requests(["r", "unknown"])
    assert core_ids == ["1_r"]
    assert [c.finish_reason for c in told[-1].outputs] == ["length", "abort"]
    assert told[-1].finished
    assert not processor.has_unfinished_requests()
    processor.add_request(make_request(), None)


def test_a_failed_request_says_why() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(), None)
    (told,) = step(
        processor, EngineCoreOutput(request_id="r", finish_reason=FinishReason.ERROR, error="why")
    )
    assert (told.outputs[0].finish_reason, told.error, told.finished) == ("error", "why", True)


def test_statistics_count_tokens_and_times() -> None:
    processor = make_output_processor()
    processor.add_request(make_request(), None)
    stats = IterationStats()
    processor.process_outputs(outputs(token(0)), stats)
    processor.process_outputs(outputs(token(1, finish_reason=FinishReason.LENGTH)), stats)
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (2, 2)
    assert (len(stats.time_to_first_tokens), len(stats.inter_token_latencies)) == (1, 1)
    (finished,) = stats.finished_requests
    assert (finished.finish_reason, finished.num_generation_tokens) == ("length", 2)
    assert finished.e2e_latency > 0


def test_the_other_outputs_of_a_failed_request_count_as_aborted() -> None:
    processor = make_output_processor()
    queued(processor, n=3)
    stats = IterationStats()
    processor.process_outputs(outputs(token(0, "0_r", finish_reason=FinishReason.LENGTH)), stats)
    error = EngineCoreOutput(request_id="1_r", finish_reason=FinishReason.ERROR, error="why")
    processor.process_outputs(outputs(error), stats)
    assert [f.finish_reason for f in stats.finished_requests] == ["length", "error", "abort"]
    assert not processor.has_unfinished_requests()
    processor.add_request(make_request(n=3), None)


def test_load_beyond_the_slots_is_counted_in_order_of_arrival() -> None:
    processor = make_output_processor()
    processor.add_request(make_request("a", n=3), None)
    processor.add_request(make_request("b"), None)
    assert processor.waiting_load(2) == (2, 4)
    assert processor.waiting_load(9) == (0, 0)


def queued(processor: OutputProcessor, **params: object) -> RequestOutputCollector:
    request = make_request(**params)
    queue = RequestOutputCollector(request.sampling_params.output_kind, "r")
    processor.add_request(request, None, queue)
    return queue


def test_a_consumer_that_lags_finds_the_deltas_joined() -> None:
    processor = make_output_processor()
    queue = queued(processor, n=2, output_kind=RequestOutputKind.DELTA)
    for token_id in (0, 1):
        step(processor, token(token_id, "0_r"), token(token_id + 2, "1_r"))
    step(processor, token(7, "0_r", finish_reason=FinishReason.LENGTH))
    got = queue.get_nowait()
    assert got is not None
    assert {c.index: c.text for c in got.outputs} == {0: "AB!", 1: "CDEF"}
    assert [c.finish_reason for c in got.outputs] == ["length", None]
    assert queue.get_nowait() is None


def test_a_failure_reaches_the_consumer_after_the_outputs_before_it() -> None:
    processor = make_output_processor()
    queue = queued(processor, n=2, output_kind=RequestOutputKind.DELTA)
    step(processor, token(0, "0_r"))
    error = EngineCoreOutput(request_id="1_r", finish_reason=FinishReason.ERROR, error="why")
    assert processor.process_outputs(outputs(error)).reqs_to_abort == ["0_r"]
    assert queue.get_nowait() is not None
    with pytest.raises(RequestFailedError, match="why"):
        queue.get_nowait()
    assert not processor.has_unfinished_requests()


def test_a_dead_engine_fails_everyone() -> None:
    processor = make_output_processor()
    queue = queued(processor)
    processor.fail_all(EngineDeadError("gone"))

    async def get() -> None:
        with pytest.raises(EngineDeadError, match="gone"):
            await queue.get()

    asyncio.run(get())
    assert not processor.has_unfinished_requests()
