# SPDX-License-Identifier: Apache-2.0
"""Transformers models split over two ranks: right as on one, or refused by their reason.

Each rank has an engine of its own; all models are served by one pair of processes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ranks import run_ranks
from tests.model_executor.model_loader.test_mxfp4 import read_by_transformers, write_packed
from tests.models.transformers import on_ranks
from tests.models.transformers.tiny import MODELS, hf_model, make_model

TOLERANCE = 1e-4
WORLD = 2
# Model type and what differs from MODELS.
OTHER_SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "odd vocabulary": ("llama", {"vocab_size": 131}),
    "odd tied vocabulary": ("llama", {"vocab_size": 131, "tie_word_embeddings": True}),
    "scaled tied embedding": ("gemma2", {"vocab_size": 131}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "one KV head": ("qwen3", {"num_key_value_heads": 1}),
    "one KV head and sinks": ("gpt_oss", {"num_key_value_heads": 1}),
}
REFUSED_SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "odd heads": ("gpt_oss", {"num_attention_heads": 3, "num_key_value_heads": 3}),
    "odd intermediate size": ("llama", {"intermediate_size": 95}),
}
# The plan gathers projections: a norm over all heads, a packed projection.
WHOLE_ATTENTION = ("olmo2", "phi3")
Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each rank says of each model."""
    path = tmp_path_factory.mktemp("split")
    cases: dict[str, tuple[Path, Callable[[], Any]]] = {}
    plain: Mapping[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in MODELS}
    for name, (model_type, sizes) in {**plain, **OTHER_SIZES, **REFUSED_SIZES}.items():
        checkpoint = make_model(path / name.replace(" ", "-"), model_type, **sizes)
        cases[name] = (checkpoint, partial(hf_model, model_type, **sizes))
    packed = write_packed(path / "mxfp4")
    cases["MXFP4"] = (packed, partial(read_by_transformers, packed))
    return run_ranks(on_ranks.models, WORLD, cases, WORLD)


@pytest.mark.parametrize("name", [*(m for m in MODELS if m != "gpt2"), *OTHER_SIZES, "MXFP4"])
def test_logprobs_equal_transformers(name: str, results: Results) -> None:
    for rank in results:
        difference, layers = rank[name]
        assert difference < TOLERANCE
        assert layers


@pytest.mark.parametrize("model_type", [m for m in MODELS if m != "gpt2"])
def test_each_rank_has_its_share_of_heads(model_type: str, results: Results) -> None:
    share = 1 if model_type in WHOLE_ATTENTION else WORLD
    for rank in results:
        for layer in rank[model_type][1].values():
            assert layer["num_heads"] == 4 // share


@pytest.mark.parametrize(
    "name", ["gpt_oss", "granite_swa", "mimo_v2_flash", "one KV head and sinks"]
)
def test_sinks_of_the_ranks_joined_are_those_of_the_checkpoint(name: str, results: Results) -> None:
    model_type, sizes = OTHER_SIZES.get(name, (name, {}))
    expected = {n: p for n, p in hf_model(model_type, **sizes).named_parameters() if "sinks" in n}
    layers = [rank[name][1] for rank in results]
    with_sinks = [n for n, layer in layers[0].items() if layer["sinks"] is not None]
    assert len(with_sinks) == len(expected) > 0
    for layer_name, sinks in zip(with_sinks, expected.values(), strict=True):
        parts = [rank[layer_name]["sinks"] for rank in layers]
        assert [len(part) for part in parts] == [rank[layer_name]["num_heads"] for rank in layers]
        torch.testing.assert_close(torch.cat(parts), sinks.detach(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpt2", "GPT2LMHeadModel has no tensor-parallel plan"),
        ("odd heads", "3 attention heads do not divide by it"),
        ("odd intermediate size", "95 does not divide by tensor_parallel_size=2"),
    ],
)
def test_what_cannot_be_split_is_refused_on_every_rank(
    name: str, says: str, results: Results
) -> None:
    for rank in results:
        assert isinstance(rank[name], str)
        assert says in rank[name]
