# SPDX-License-Identifier: Apache-2.0
"""Whole models split over ranks, against Transformers; each rank has an engine of its own."""

import re
from typing import Any

import pytest

from tests.conftest import TinyModel
from tests.distributed import on_ranks
from tests.distributed.ranks import run_ranks
from tests.utils import random_token_ids
from tests.v1.executor.utils import TOLERANCE, check, generate, make_config, start

# Lengths on both sides of block (8), chunk and window (16).
PROMPTS = {str(n): random_token_ids(n, seed=n, vocab_size=500) for n in (1, 8, 17, 40, 90)}
NUM_TOKENS = 8
BIASES = {"attention_bias": True, "mlp_bias": True}


@pytest.mark.parametrize(
    ("arch", "tp", "model", "options"),
    [
        pytest.param("llama", 2, {}, {"chunk": 16}, id="tied-chunked"),
        pytest.param("llama", 2, {"tie": False, "vocab_size": 509, **BIASES}, {}, id="biases-odd"),
        pytest.param("llama", 4, {"vocab_size": 509, **BIASES}, {}, id="4-ranks-share-2-kv-heads"),
        pytest.param("qwen3", 2, {"num_key_value_heads": 1}, {}, id="1-kv-head-window"),
        pytest.param("qwen3", 2, {"tie": False}, {"chunk": 16}, id="untied-window-chunked"),
    ],
)
def test_logprobs_equal_transformers(
    tiny_model: TinyModel, arch: str, tp: int, model: dict[str, Any], options: dict[str, Any]
) -> None:
    path = tiny_model(arch, **model)
    results = run_ranks(on_ranks.engine, tp, path, arch, tp, options, PROMPTS, NUM_TOKENS)
    first, second = results[0]
    check(path, PROMPTS, first, NUM_TOKENS)
    check(path, PROMPTS, second, NUM_TOKENS)
    assert second["90"].num_cached_tokens >= 64, "the second run should have hit prefixes"
    for other_first, other_second in results[1:]:
        assert (other_first, other_second) == (first, second), "ranks must agree to the bit"


def test_unlike_requests_are_an_error_on_every_rank(tiny_model: TinyModel) -> None:
    prompts = {"0": [10, 11, 12], "1": [10, 11, 13]}
    for message in run_ranks(on_ranks.unlike_requests, 2, tiny_model("llama"), prompts):
        assert "the same prompts and sampling parameters, in the same order" in message


def test_the_smallest_cache_is_agreed_on(tiny_model: TinyModel) -> None:
    sizes = run_ranks(on_ranks.cache_sizes, 2, tiny_model("llama"), (2**22, 2**21))
    assert sizes == [2**21, 2**21]


def test_a_rank_that_cannot_start_stops_the_others(tiny_model: TinyModel) -> None:
    own, other = run_ranks(on_ranks.cache_sizes, 2, tiny_model("llama"), (2**60, 2**21))
    assert "asks for a KV cache" in own and "shared by 2 ranks" in own
    assert other == "ranks [0] could not size the KV cache; their messages say why"


def test_steps_do_not_depend_on_when_a_grammar_is_compiled(tiny_model: TinyModel) -> None:
    regex = r"[a-f]{3}-[0-9]{2}"
    first, second = run_ranks(
        on_ranks.structured_outputs, 2, tiny_model("llama"), regex, (0.0, 0.5)
    )
    assert first == second
    assert re.fullmatch(regex, first[0])


def test_a_step_that_fails_on_every_rank_ends_its_request_alone(tiny_model: TinyModel) -> None:
    for fates in run_ranks(on_ranks.failing_steps, 2, tiny_model("llama"), (0, 1)):
        assert fates == ["the model failed on this request (RuntimeError)", "done"]


def test_a_step_that_fails_on_one_rank_ends_the_engine_on_all(tiny_model: TinyModel) -> None:
    death = "dead: ranks [1] failed in a step that the others ended; their messages say why"
    fates = run_ranks(on_ranks.failing_steps, 2, tiny_model("llama"), (1,))
    assert fates == [["done", death], [death]]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"vocab_size": 509, "tie": False, **BIASES}, id="odd-untied-biases"),
        pytest.param({"num_key_value_heads": 1}, id="tied-1-kv-head"),
    ],
)
def test_dummy_weights_are_of_one_model(tiny_model: TinyModel, model: dict[str, Any]) -> None:
    path, options = tiny_model("llama", **model), {"load_format": "dummy"}
    whole = generate(*start(make_config(path, "llama", **options)), PROMPTS, NUM_TOKENS)
    for split, _ in run_ranks(on_ranks.engine, 2, path, "llama", 2, options, PROMPTS, NUM_TOKENS):
        for name, expected in whole.items():
            assert split[name].tokens == expected.tokens
            assert split[name].logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)


def test_the_step_estimate_does_not_take_a_part_of_the_vocabulary_for_a_layer(
    tiny_model: TinyModel,
) -> None:
    small, large = (
        run_ranks(on_ranks.activations, 2, tiny_model("llama", vocab_size=size, tie=False))
        for size in (500, 30_000)
    )
    # Six fp32 rows of logits for each of the four requests that can run at once.
    assert [b - a for a, b in zip(small, large, strict=True)] == [29_500 * 4 * 6 * 4] * 2
