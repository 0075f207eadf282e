# SPDX-License-Identifier: Apache-2.0
"""Requests with a grammar: they wait for it, hold nobody up, and end when it says so."""

from tests.v1.core.utils import Engine, create_request, create_scheduler
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.messages import EngineCoreRequest, FinishReason
from vllm.v1.request import Request, RequestStatus


class ScriptedGrammars:
    """Grammars that are ready, broken or done when the test says so."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ready: set[str] = set()
        self.broken: set[str] = set()
        self.accepted: dict[str, list[int]] = {}
        self.refuse_after: int | None = None
        self.complete_after: int | None = None
        self.cleared: list[str] = []

    def grammar_init(self, request: Request) -> None:
        self.started.append(request.request_id)

    def is_ready(self, request: Request) -> bool:
        if request.request_id in self.broken:
            raise VLLMValidationError("the grammar is too large")
        return request.request_id in self.ready

    def accept_tokens(self, request: Request, token_ids: list[int]) -> bool:
        accepted = self.accepted.setdefault(request.request_id, [])
        accepted.extend(token_ids)
        return self.refuse_after is None or len(accepted) <= self.refuse_after

    def is_terminated(self, request: Request) -> bool:
        accepted = self.accepted.get(request.request_id, [])
        return self.complete_after is not None and len(accepted) >= self.complete_after

    def clear(self, request_id: str) -> None:
        self.cleared.append(request_id)


def constrained(req_id: str, prompt_len: int = 9, max_tokens: int = 4) -> EngineCoreRequest:
    grammar = StructuredOutputsParams(regex="a+")
    return create_request(
        req_id, prompt_len, max_tokens, structured_outputs=grammar, ignore_eos=True
    )


def engine_of(grammars: ScriptedGrammars, **kwargs: object) -> Engine:
    return Engine(create_scheduler(grammar=grammars, **kwargs))


def test_a_grammar_in_the_making_holds_nobody_up() -> None:
    grammars = ScriptedGrammars()
    engine = engine_of(grammars)
    engine.add(constrained("g"), create_request("plain", 9))
    assert grammars.started == ["g"]
    assert list(engine.step().num_scheduled_tokens) == ["plain"]
    assert engine.scheduler.get_request_counts() == (1, 1)
    grammars.ready.add("g")
    assert list(engine.step().num_scheduled_tokens) == ["plain", "g"]
    engine.run()
    engine.check_against_solo()
    assert grammars.cleared == ["g"]


def test_once_ready_it_has_its_old_place_in_the_queue() -> None:
    grammars = ScriptedGrammars()
    engine = engine_of(grammars, max_num_seqs=1)
    engine.add(create_request("first", 3, 2), constrained("g"), create_request("last", 3))
    engine.step()
    grammars.ready.add("g")
    engine.run()
    order = [batch[0] for batch in engine.model.batches]
    assert order.index("g") < order.index("last")


def test_a_step_with_nothing_but_grammars_in_the_making_is_empty_and_no_stall() -> None:
    grammars = ScriptedGrammars()
    engine = engine_of(grammars)
    engine.add(constrained("g"))
    assert not engine.step().num_scheduled_tokens
    assert engine.scheduler.has_requests() and not engine.collected


def test_only_steps_that_draw_ask_for_the_mask() -> None:
    grammars = ScriptedGrammars()
    grammars.ready.add("g")
    engine = engine_of(grammars, max_num_batched_tokens=5)
    engine.add(constrained("g"))
    asked = [engine.step().grammar_req_ids for _ in range(3)]
    assert asked == [[], ["g"], ["g"]]


def test_a_grammar_that_fails_ends_its_request_with_the_reason() -> None:
    grammars = ScriptedGrammars()
    grammars.broken.add("g")
    engine = engine_of(grammars)
    engine.add(constrained("g"), create_request("plain", 9))
    engine.run()
    assert engine.collected["g"].finish_reason is FinishReason.ERROR
    assert engine.collected["g"].outputs[-1].error == "the grammar is too large"
    engine.check_against_solo("plain")
    assert grammars.cleared == ["g"]


def test_a_refused_token_ends_the_request_with_an_error() -> None:
    grammars = ScriptedGrammars()
    grammars.ready.add("g")
    grammars.refuse_after = 2
    engine = engine_of(grammars)
    engine.add(constrained("g"))
    engine.run()
    assert engine.collected["g"].finish_reason is FinishReason.ERROR
    assert len(engine.collected["g"].token_ids) == 2


def test_a_complete_grammar_ends_the_request() -> None:
    grammars = ScriptedGrammars()
    grammars.ready.add("g")
    grammars.complete_after = 3
    engine = engine_of(grammars)
    engine.add(constrained("g", max_tokens=9))
    engine.run()
    assert engine.collected["g"].finish_reason is FinishReason.STOP
    assert len(engine.collected["g"].token_ids) == 3


def test_the_token_that_stops_is_not_asked_of_the_grammar() -> None:
    grammars = ScriptedGrammars()
    grammars.ready.add("g")
    engine = engine_of(grammars)
    request = constrained("g", max_tokens=9)
    request.sampling_params.stop_token_ids = list(range(50))
    request.sampling_params.min_tokens = 3
    engine.add(request)
    engine.run()
    assert grammars.accepted["g"] == engine.collected["g"].token_ids[:2]


def test_a_request_can_be_aborted_while_its_grammar_is_made() -> None:
    grammars = ScriptedGrammars()
    engine = engine_of(grammars)
    engine.add(constrained("g"))
    engine.collect(engine.scheduler.finish_requests("g", RequestStatus.FINISHED_ABORTED))
    engine.scheduler.check_integrity()
    assert not engine.scheduler.has_requests() and grammars.cleared == ["g"]


def test_an_end_that_is_still_to_be_told_survives_a_restarted_step() -> None:
    grammars = ScriptedGrammars()
    engine = engine_of(grammars)
    engine.add(constrained("g"), create_request("plain", 9))
    engine.step()
    grammars.broken.add("g")
    engine.scheduler.restart_step(engine.scheduler.schedule())
    assert engine.collected["g"].finish_reason is None
    engine.run()
    assert engine.collected["g"].finish_reason is FinishReason.ERROR
    engine.check_against_solo("plain")


def test_held_requests_are_counted_as_waiting() -> None:
    engine = engine_of(ScriptedGrammars())
    engine.add(constrained("g"))
    assert engine.scheduler.get_request_counts() == (0, 1)
