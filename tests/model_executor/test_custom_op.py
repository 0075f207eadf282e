# SPDX-License-Identifier: Apache-2.0
"""CustomOp: one initialisation, replacement by name, dispatch by platform."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from vllm.model_executor import custom_op
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.activation import SiluAndMul


@pytest.fixture(autouse=True)
def registries_are_left_as_found(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(custom_op, "op_registry", dict(custom_op.op_registry))
    monkeypatch.setattr(custom_op, "op_registry_oot", {})
    yield


class Holder(nn.Module):
    """Stands for a base that initialises cooperatively and then registers a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


def test_cooperative_init_reaches_the_op_once_and_keeps_parameters() -> None:
    class Both(Holder, CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    layer = Both()
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert torch.equal(layer(torch.tensor([2.0, 3.0])), torch.tensor([2.0, 3.0]))


def test_second_init_raises_instead_of_wiping() -> None:
    class Twice(Holder, CustomOp):
        def __init__(self) -> None:
            super().__init__()
            CustomOp.__init__(self)

    with pytest.raises(RuntimeError, match="Twice is initialised already"):
        Twice()


def test_out_of_tree_class_replaces_by_name() -> None:
    @SiluAndMul.register_oot
    class Negated(SiluAndMul):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward_native(x)

    x = torch.randn(2, 6)
    made = SiluAndMul()
    assert type(made) is Negated
    assert torch.equal(made(x), -SiluAndMul.forward_native(made, x))
    with pytest.raises(ValueError, match="SiluAndMul is replaced already by Negated"):
        CustomOp.register_oot(name="SiluAndMul")(Negated)


def test_platform_method_wins_and_native_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    class Platform:
        name = "rocm"

    class OnlyCuda(CustomOp):
        def forward_native(self) -> str:
            return "native"

        def forward_cuda(self) -> str:
            return "cuda"

    assert OnlyCuda()() == ("cuda" if torch.cuda.is_available() else "native")
    monkeypatch.setattr(custom_op, "current_platform", Platform)
    assert OnlyCuda()() == "cuda"  # ROCm runs CUDA's method unless it has its own
    monkeypatch.setattr(OnlyCuda, "enabled", classmethod(lambda cls: False))
    assert OnlyCuda()() == "native"
    assert OnlyCuda(enforce_enable=True)() == "cuda"


def test_names_are_unique() -> None:
    with pytest.raises(ValueError, match="'rms_norm' is registered already"):
        CustomOp.register("rms_norm")(SiluAndMul)
