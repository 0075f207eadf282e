# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters: upstream's defaults, and a typed refusal for everything out of range."""

import math
import pickle
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

NAN, INF = math.nan, math.inf


def test_defaults_are_upstreams() -> None:
    p = SamplingParams()
    assert (p.n, p.temperature, p.top_p, p.top_k, p.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (p.presence_penalty, p.frequency_penalty, p.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (p.seed, p.max_tokens, p.min_tokens, p.logprobs) == (None, 16, 0, None)
    assert (p.stop, p.stop_token_ids, p.ignore_eos) == ([], [], False)
    assert (p.detokenize, p.skip_special_tokens) == (True, True)
    assert p.output_kind is RequestOutputKind.CUMULATIVE


REFUSED: list[tuple[str, Any]] = [
    *[("n", v) for v in (0, -1, 10**9, 1.5, True, "2")],
    *[("presence_penalty", v) for v in (-2.1, 2.1, NAN, INF, "1")],
    *[("frequency_penalty", v) for v in (-2.1, 2.1, NAN, 10**400)],
    *[("repetition_penalty", v) for v in (0, -1.0, NAN, INF)],
    *[("temperature", v) for v in (-0.1, NAN, INF, "hot", True, 10**400)],
    *[("temperature", v) for v in (np.float32("nan"), np.bool_(True), 1j, np.array([0.5]), None)],
    *[("top_p", v) for v in (0.0, -0.1, 1.1, NAN, np.float16(0), Fraction(1, 10**400))],
    *[("top_k", v) for v in (-2, 1.5, 2**31, True, None, np.int8(-2), np.float64(3), np.bool_(1))],
    *[("min_p", v) for v in (-0.1, 1.1, NAN)],
    *[("seed", v) for v in (2**63, -(2**63) - 1, 1.5, "x")],
    *[("max_tokens", v) for v in (0, -1, 1.5, 2**31)],
    *[("min_tokens", v) for v in (-1, 17, 1.5)],
    *[("logprobs", v) for v in (-2, 1.5, "1", 2**31)],
    *[("prompt_logprobs", v) for v in (-2, 1.5, 2**63)],
    *[("stop", v) for v in ("", [""], [5], 5, ["x"] * 65, ["x" * 4097], {"a": 1})],
    *[("stop_token_ids", v) for v in ([-1], ["5"], 5, "5", [True], [1.0])],
    *[("bad_words", v) for v in ("word", [""], [5], ["x"] * 1025, 5)],
    *[("logit_bias", v) for v in ({-1: 5}, {"AI": -100}, {"5": 1}, {5: 1e9}, {5: NAN}, {5: "x"})],
    *[("logit_bias", v) for v in ([1], 5, "x", {5: -101}, {5: INF})],
    *[("allowed_token_ids", v) for v in ([], [-1], ["5"], 5, "abc")],
    *[("ignore_eos", v) for v in ("false", 1, None)],
    *[("detokenize", v) for v in ("no", 0)],
    ("include_stop_str_in_output", "yes"),
    ("skip_special_tokens", 0),
    ("output_kind", 7),
    ("output_kind", "DELTA"),
    ("structured_outputs", {"regex": "a"}),
    ("extra_args", {"a": 1}),
    ("thinking_token_budget", 5),
    ("spaces_between_special_tokens", False),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=lambda v: repr(v)[:24])
def test_what_is_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(VLLMValidationError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name
    assert str(caught.value).startswith(name)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("temperature", np.float32(0.5), 0.5),
        ("temperature", Fraction(1, 4), 0.25),
        ("top_p", np.float16(0.5), 0.5),
        ("presence_penalty", np.int64(1), 1),
        ("n", np.int64(3), 3),
        ("top_k", np.uint8(7), 7),
        ("top_k", np.int64(-1), 0),
        ("seed", np.uint64(2**63 - 1), 2**63 - 1),
        ("max_tokens", np.int32(5), 5),
        ("logprobs", np.int64(2), 2),
        ("stop_token_ids", [np.int64(5)], [5]),
        ("allowed_token_ids", (np.int32(5), 6), [5, 6]),
        ("logit_bias", {np.int64(5): np.float32(1.5)}, {5: 1.5}),
    ],
)
def test_any_kind_of_number_is_taken_and_stored_as_pythons(
    name: str, value: Any, stored: Any
) -> None:
    params = SamplingParams(**{name: value})
    found = getattr(params, name)
    assert found == stored and type(found) is type(stored)
    # What is stored crosses to the engine's process, which knows Python's numbers alone.
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_stop_strings_need_text() -> None:
    with pytest.raises(VLLMValidationError, match="stop_token_ids"):
        SamplingParams(stop="x", detokenize=False)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"top_k": -1}, "top_k", 0),
        ({"seed": -1}, "seed", None),
        ({"stop": "x"}, "stop", ["x"]),
        ({"stop": ("x", "y")}, "stop", ["x", "y"]),
        ({"logprobs": True}, "logprobs", 1),
        ({"logprobs": -1}, "logprobs", -1),
        ({"temperature": 2}, "temperature", 2),
        ({"max_tokens": None, "min_tokens": 50}, "min_tokens", 50),
    ],
)
def test_accepted_forms(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(SamplingParams(**given), field) == value


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-30, 1e-5])
def test_a_temperature_of_almost_zero_is_greedy_and_drops_the_filters(temperature: float) -> None:
    p = SamplingParams(temperature=temperature, top_p=0.5, top_k=3, min_p=0.5)
    assert p.is_greedy
    assert (p.temperature, p.top_p, p.top_k, p.min_p) == (0.0, 1.0, 0, 0.0)
    assert not SamplingParams(temperature=1.1e-5).is_greedy


def test_stop_ids_are_the_requests_own_and_the_models_unless_ignored() -> None:
    p = SamplingParams(stop_token_ids=[7])
    p.eos_token_ids = [1, 2]
    assert p.all_stop_token_ids == {1, 2, 7}
    p.ignore_eos = True
    assert p.all_stop_token_ids == {7}


def full_params() -> SamplingParams:
    return SamplingParams(
        n=2,
        temperature=0.5,
        top_k=4,
        seed=-(2**63),
        stop=["a"],
        logit_bias={5: 1.5},
        bad_words=["b"],
        allowed_token_ids=[1, 5],
        structured_outputs=StructuredOutputsParams(json={"type": "object"}),
        output_kind=RequestOutputKind.DELTA,
    )


def test_a_clone_is_equal_and_shares_nothing_mutable() -> None:
    original = full_params()
    clone = original.clone()
    assert clone == original
    clone.stop.append("c")  # type: ignore[union-attr]
    clone.logit_bias[6] = 1.0  # type: ignore[index]
    clone.allowed_token_ids.append(9)  # type: ignore[union-attr]
    assert original == full_params()


def test_a_clone_checks_what_was_changed_since() -> None:
    p = SamplingParams()
    p.temperature = -1.0
    with pytest.raises((VLLMValidationError, msgspec.ValidationError)):
        p.clone()


def test_parameters_cross_processes_unchanged() -> None:
    original = full_params()
    wire = msgspec.msgpack.encode(original)
    assert msgspec.msgpack.decode(wire, type=SamplingParams) == original
    assert pickle.loads(pickle.dumps(original)) == original
