# SPDX-License-Identifier: Apache-2.0
"""Room in the waiting queue: what is refused for now, and what for ever."""

from typing import Any

import pytest

from tests.v1.engine.utils import make_output_processor, make_request
from vllm.config import SchedulerConfig
from vllm.exceptions import EngineOverloadedError, VLLMValidationError
from vllm.v1.engine.waiting_bounds import check_waiting_bounds


def limits(**fields: Any) -> SchedulerConfig:
    return SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=2, max_model_len=64, **fields)


def test_more_outputs_than_an_idle_engine_holds_are_refused_for_ever() -> None:
    processor, bounds = make_output_processor(), limits(max_waiting_requests=3)
    check_waiting_bounds(bounds, processor, [(5, 2)])
    check_waiting_bounds(bounds, processor, [(1, 2)] * 5)
    with pytest.raises(VLLMValidationError, match="max_waiting_requests=3") as info:
        check_waiting_bounds(bounds, processor, [(6, 2)])
    assert info.value.parameter == "n"
    with pytest.raises(VLLMValidationError) as info:
        check_waiting_bounds(bounds, processor, [(1, 2)] * 6)
    assert info.value.parameter == "prompt"


def test_what_has_no_room_now_may_come_again() -> None:
    processor, bounds = make_output_processor(), limits(max_waiting_requests=3)
    processor.add_request(make_request(n=4), None)
    check_waiting_bounds(bounds, processor, [(1, 2)])
    with pytest.raises(EngineOverloadedError, match="2 requests wait"):
        check_waiting_bounds(bounds, processor, [(2, 2)])
    with pytest.raises(EngineOverloadedError):
        check_waiting_bounds(bounds, processor, [(1, 2), (1, 2)])


def test_tokens_that_wait_are_bounded_too() -> None:
    processor, bounds = make_output_processor(), limits(max_waiting_tokens=10)
    check_waiting_bounds(bounds, processor, [(1, 50)] * 3)
    with pytest.raises(VLLMValidationError, match="max_waiting_tokens=10"):
        check_waiting_bounds(bounds, processor, [(1, 50)] * 4)
    processor.add_request(make_request(n=3), None)
    check_waiting_bounds(bounds, processor, [(1, 8)])
    with pytest.raises(EngineOverloadedError, match="2 prompt tokens wait"):
        check_waiting_bounds(bounds, processor, [(1, 9)])
