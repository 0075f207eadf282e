# SPDX-License-Identifier: Apache-2.0
"""Load accounting: no fault of a checkpoint or of a model's loader goes unseen."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from vllm.exceptions import ModelLoadError
from vllm.model_executor.model_loader.accounting import account_load
from vllm.model_executor.model_loader.weight_source import Weight
from vllm.model_executor.model_loader.weight_utils import (
    AutoWeightsLoader,
    WeightsMapper,
    default_weight_loader,
    sharded_weight_loader,
)

FUSED = WeightsMapper(orig_to_new_stacked={".q": (".qk", 0), ".k": (".qk", 1)})
Loader = Callable[[Iterable[tuple[str, torch.Tensor]]], set[str]]


class Fused(nn.Module):
    """A fused weight of 2 + 3 rows, a norm, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Module()
        self.a.qk = nn.Parameter(torch.empty(5, 4), requires_grad=False)
        self.a.qk.weight_loader = self._load_part
        self.norm = nn.Parameter(torch.empty(4), requires_grad=False)
        self.register_buffer("scale", torch.ones(1))

    def _load_part(self, param: nn.Parameter, loaded: torch.Tensor, shard_id: int) -> None:
        start, size = ((0, 2), (2, 3))[shard_id]
        default_weight_loader(param.data[start : start + size], loaded)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return AutoWeightsLoader(self, ignore_unexpected_suffixes=[".inv_freq"]).load_weights(
            weights, mapper=FUSED
        )


def whole() -> dict[str, torch.Tensor]:
    return {"a.q": torch.full((2, 4), 1.0), "a.k": torch.full((3, 4), 2.0), "norm": torch.ones(4)}


def load(weights: dict[str, torch.Tensor], loader: Loader | None = None) -> Fused:
    model = Fused()
    source = [Weight(n, t, "part.safetensors") for n, t in weights.items()]
    account_load(model, source, loader or model.load_weights)
    return model


def test_whole_checkpoint_is_accepted() -> None:
    model = load(whole())
    assert model.a.qk[:, 0].tolist() == [1, 1, 2, 2, 2]
    load({n: t.bfloat16() for n, t in whole().items()})
    load(whole() | {"scale": torch.full((1,), 3.0)})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.q", r"a\.qk \(shape \[5, 4\]\): 8 of 20 elements are missing; it got a\.k.*part\.safe"),
        ("a.k", r"a\.qk .*12 of 20 elements are missing; it got a\.q"),
        ("norm", r"norm is not in the checkpoint \(expected shape \[4\]; looked for in part\.safe"),
    ],
)
def test_missing_tensor_is_named_with_shape_and_file(name: str, says: str) -> None:
    weights = whole()
    del weights[name]
    with pytest.raises(ModelLoadError, match=says):
        load(weights)


def test_unexpected_tensor_is_named_with_file() -> None:
    with pytest.raises(ModelLoadError, match=r"a\.sinks \(shape \[2\], from part\.safetensors\)"):
        load(whole() | {"a.sinks": torch.zeros(2)})
    load(whole() | {"rope.inv_freq": torch.zeros(2)})


def test_wrong_shape_is_named_with_both_shapes_and_file() -> None:
    says = r"from part\.safetensors\).*holds shape \[3, 5\], the model needs \[3, 4\]"
    with pytest.raises(ModelLoadError, match=says):
        load(whole() | {"a.k": torch.zeros(3, 5)})


def test_same_name_twice_is_refused() -> None:
    model = Fused()
    source = [Weight(n, t, f"{i}.safetensors") for i in range(2) for n, t in whole().items()]
    with pytest.raises(ModelLoadError, match=r"^a\.q .* twice: in 0\.safe.* and in 1\.safe"):
        account_load(model, source, model.load_weights)


def account(model: nn.Module, weights: dict[str, torch.Tensor], loader: Loader) -> None:
    account_load(model, [Weight(n, t, "part.safetensors") for n, t in weights.items()], loader)


def test_two_tensors_for_one_place_are_refused() -> None:
    model = Fused()
    mapper = FUSED | WeightsMapper(orig_to_new_prefix={"b.": ""})

    def loader(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return AutoWeightsLoader(model).load_weights(weights, mapper=mapper)

    with pytest.raises(ModelLoadError, match=r"a\.qk is written twice, by a\.k, a\.q, b\.a\.q"):
        account(model, whole() | {"b.a.q": torch.zeros(2, 4)}, loader)


def test_loader_that_forgets_a_tensor_or_a_part_is_found() -> None:
    model = Fused()

    def forgets(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return model.load_weights((n, t) for n, t in weights if n != "norm") | {"norm"}

    with pytest.raises(ModelLoadError, match=r"norm is not in.*no use for: norm \(shape \[4\]"):
        account(model, whole(), forgets)

    def copies_half(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for name, tensor in weights:
            if name == "norm":
                model.norm.data[::2].copy_(tensor[::2])
            else:
                model.load_weights([(name, tensor)])
        return set()

    with pytest.raises(ModelLoadError, match=r"norm \(shape \[4\]\): 2 of 4 elements"):
        account(model, whole(), copies_half)


def test_changed_in_place_is_not_written() -> None:
    model = Fused()

    def adds(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for name, tensor in weights:
            if name == "norm":
                model.norm.data.add_(tensor)
            else:
                model.load_weights([(name, tensor)])
        return set()

    with pytest.raises(ModelLoadError, match="norm is not in the checkpoint"):
        account(model, whole(), adds)


def test_columns_and_held_back_tensors_are_followed() -> None:
    model = nn.Linear(6, 4, bias=False)
    weight = torch.arange(24.0).view(4, 6)
    parts = {"left": weight[:, :2].contiguous(), "right": weight[:, 2:].contiguous()}

    def loader(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        held = dict(weights)
        model.weight.data[:, 2:].copy_(held["right"])
        model.weight.data[:, :2].copy_(held["left"])
        return {"weight"}

    account(model, parts, loader)
    assert torch.equal(model.weight, weight)
    with pytest.raises(ModelLoadError, match=r"no use for: spare \(shape \[3\]"):
        account(model, parts | {"spare": torch.zeros(3)}, loader)


def test_padding_may_be_filled_under_a_copy() -> None:
    model = nn.Linear(4, 6, bias=False)

    def loader(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for _, tensor in weights:
            model.weight.data.zero_()
            model.weight.data[:5].copy_(tensor)
        return {"weight"}

    account(model, {"weight": torch.ones(5, 4)}, loader)


def test_tied_parameters_are_one() -> None:
    model = nn.ModuleDict({"e": nn.Embedding(5, 4), "h": nn.Linear(4, 5, bias=False)})
    model["h"].weight = model["e"].weight
    account(model, {"e.weight": torch.ones(5, 4)}, AutoWeightsLoader(model).load_weights)


def test_replaced_parameter_counts_and_a_swapped_in_one_does_not() -> None:
    model = nn.Linear(4, 5, bias=False)

    def replaces(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for _, tensor in weights:
            model.weight = nn.Parameter(torch.empty(5, 4), requires_grad=False)
            model.weight.data.copy_(tensor)
        return set()

    account(model, {"w": torch.ones(5, 4)}, replaces)

    def forgets(weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        replaces(weights)
        model.weight = nn.Parameter(torch.empty(5, 4), requires_grad=False)
        return set()

    with pytest.raises(ModelLoadError, match="weight is not in the checkpoint"):
        account(model, {"w": torch.ones(5, 4)}, forgets)


def test_fault_of_the_source_keeps_its_own_words() -> None:
    def source() -> Any:
        yield Weight("norm", torch.ones(4), "part.safetensors")
        raise ModelLoadError("b.safetensors is damaged")

    model = Fused()
    with pytest.raises(ModelLoadError, match=r"^b\.safetensors is damaged"):
        account_load(model, source(), model.load_weights)


def test_default_and_sharded_loaders() -> None:
    scalar = nn.Parameter(torch.empty(1), requires_grad=False)
    default_weight_loader(scalar, torch.tensor(3.0))
    assert scalar.item() == 3.0
    param = nn.Parameter(torch.empty(2, 3), requires_grad=False)
    sharded_weight_loader(1)(param, torch.arange(6.0).view(2, 3))
    assert torch.equal(param, torch.arange(6.0).view(2, 3))
    with pytest.raises(ModelLoadError, match=r"holds shape \[2, 4\], the model needs \[2, 3\]"):
        sharded_weight_loader(1)(param, torch.zeros(2, 4))
