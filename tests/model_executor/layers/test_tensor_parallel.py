# SPDX-License-Identifier: Apache-2.0
"""Split layers on two ranks compute what whole ones do."""

import pytest
import torch
import torch.nn.functional as F

from tests.distributed import on_ranks
from tests.distributed.ranks import run_ranks
from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.layers import sharding
from vllm.model_executor.model_loader import weight_utils


def test_linear_layers_equal_torch() -> None:
    weights = {"w": torch.randn(6, 8), "b": torch.randn(6)}
    x = torch.randn(3, 8)
    whole = F.linear(x, weights["w"], weights["b"])
    results = run_ranks(on_ranks.linear_layers, 2, weights, x)
    for rank, result in enumerate(results):
        for name in ("replicated", "gathered", "whole_column", "row_of_whole", "row", "whole_row"):
            torch.testing.assert_close(result[name], whole, msg=name)
        torch.testing.assert_close(result["column"], whole.chunk(2, -1)[rank])
        torch.testing.assert_close(
            result["whole_merged"], F.linear(x, torch.cat([weights["w"], 2 * weights["w"]]))
        )
    assert torch.equal(results[0]["row"], results[1]["row"])
    partial = results[0]["row_partial"] + results[1]["row_partial"]
    torch.testing.assert_close(partial, whole)


@pytest.mark.parametrize("rows", [10, 11, 1])
def test_any_vocabulary_splits(rows: int) -> None:
    """Also one so small that the second rank holds padding only."""
    embedding, head, bias = torch.randn(rows, 4), torch.randn(rows, 4), torch.randn(rows)
    ids = torch.tensor([0, rows - 1, rows // 2, 0])
    for result in run_ranks(on_ranks.vocabulary, 2, embedding, head, bias, ids):
        x = F.embedding(ids, embedding)
        assert result["rows_here"] == (rows + 1) // 2
        assert torch.equal(result["embedding"], x)
        assert torch.equal(result["batched"], x[None])
        torch.testing.assert_close(result["logits"], F.linear(x, head, bias) * 0.5)
        torch.testing.assert_close(result["tied"], F.linear(x, embedding) * 0.5)


@pytest.fixture
def rank_1_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sharding, weight_utils):
        monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: 1)
        monkeypatch.setattr(module, "get_tensor_model_parallel_world_size", lambda: 2)


@pytest.mark.usefixtures("rank_1_of_2")
def test_a_sharded_loader_takes_its_slice() -> None:
    whole = torch.randn(4, 6)
    for axis, own in ((0, whole[2:]), (1, whole[:, 3:]), (-1, whole[:, 3:])):
        param = torch.empty_like(own)
        weight_utils.sharded_weight_loader(axis)(param, whole)
        assert torch.equal(param, own)
    with pytest.raises(ModelLoadError, match=r"\[5\], and dimension 0 of size 5 does not divide"):
        weight_utils.sharded_weight_loader(0)(torch.empty(2), torch.zeros(5))
    with pytest.raises(ModelLoadError, match=r"shape \[6\], the model needs \[4\]"):
        weight_utils.sharded_weight_loader(0)(torch.empty(2), torch.zeros(6))


@pytest.mark.usefixtures("rank_1_of_2")
def test_the_error_of_a_sharded_loader_names_the_tensor() -> None:
    module = torch.nn.Module()
    module.sinks = torch.nn.Parameter(torch.empty(2), requires_grad=False)
    module.sinks.weight_loader = weight_utils.sharded_weight_loader(0)
    loader = weight_utils.AutoWeightsLoader(module)
    with pytest.raises(ModelLoadError, match=r"^sinks .*size 5 does not divide"):
        loader.load_weights([("sinks", torch.zeros(5))])
    assert loader.load_weights([("sinks", torch.arange(4.0))]) == {"sinks"}
    assert module.sinks.tolist() == [2.0, 3.0]


@pytest.mark.usefixtures("rank_1_of_2")
def test_a_model_without_a_plan_is_not_split() -> None:
    sharding.require_tp_plan({"layers.*.q_proj": "colwise"}, "SomeForCausalLM")
    for plan in (None, {}):
        with pytest.raises(ConfigError, match=r"SomeForCausalLM.*=2.*pass tensor_parallel_size=1"):
            sharding.require_tp_plan(plan, "SomeForCausalLM")


def test_one_rank_needs_no_plan() -> None:
    sharding.require_tp_plan(None, "SomeForCausalLM")
