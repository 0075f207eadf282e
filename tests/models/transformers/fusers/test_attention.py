# SPDX-License-Identifier: Apache-2.0
"""What the attention call in a module's source says of scale and sinks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vllm.config import VllmConfig
from vllm.distributed import parallel_state
from vllm.model_executor.models.transformers.fusers.attention import AttentionFuser


def eager(*_: Any, **__: Any) -> tuple[Tensor, None]:
    return torch.zeros(1), None


class Attn(nn.Module):
    """Four heads and their sinks, or none."""

    def __init__(self, sinks: Any = None, scaling: float = 0.5) -> None:
        super().__init__()
        self.sinks = sinks
        self.scaling = scaling

    def forward(self, x: Tensor) -> Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        return interface(self, x, x, x, None, scaling=self.scaling, s_aux=self.sinks)[0]


class WithoutKeyword(Attn):
    def forward(self, x: Tensor) -> Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        return interface(self, x, x, x, None, scaling=self.scaling)[0]


class LiteralNone(Attn):
    def forward(self, x: Tensor) -> Tensor:
        return ALL_ATTENTION_FUNCTIONS["vllm"](self, x, x, x, None, s_aux=None)[0]


class Nested(Attn):
    def __init__(self, sinks: Any = None) -> None:
        super().__init__()
        self.inner = Attn(sinks)

    def forward(self, x: Tensor) -> Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        return interface(self, x, x, x, None, s_aux=self.inner.sinks)[0]


class Cast(Attn):
    def forward(self, x: Tensor) -> Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        return interface(self, x, x, x, None, s_aux=self.sinks.to(x.dtype))[0]


class ByGetattr(Attn):
    def forward(self, x: Tensor) -> Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        return interface(self, x, x, x, None, s_aux=getattr(self, "sinks", None))[0]


class Indexed(Attn):
    def forward(self, x: Tensor) -> Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        return interface(self, x, x, x, None, s_aux=self.sinks[0])[0]


class Local(Attn):
    def forward(self, x: Tensor) -> Tensor:
        sinks = self.sinks
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        return interface(self, x, x, x, None, s_aux=sinks)[0]


class Misnamed(Attn):
    def forward(self, x: Tensor) -> Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        return interface(self, x, x, x, None, s_aux=self.no_such)[0]


class TwoCalls(Attn):
    def forward(self, x: Tensor) -> Tensor:
        interface = ALL_ATTENTION_FUNCTIONS.get_interface("vllm", eager)
        first = interface(self, x, x, x, None, s_aux=self.sinks)[0]
        return first + interface(self, x, x, x, None, s_aux=self.sinks)[0]


def parameter(size: int = 4, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(size, dtype=dtype, device="meta"), requires_grad=False)


def fuser_of(module: nn.Module) -> AttentionFuser:
    fuser = AttentionFuser.match(None, module)
    assert fuser is not None
    return fuser


@pytest.mark.parametrize("kind", [Attn, Nested])
def test_sinks_are_the_parameter_that_the_call_names(kind: type[Attn]) -> None:
    sinks = parameter()
    module = kind(sinks)
    assert fuser_of(module).sinks(module) is sinks


@pytest.mark.parametrize("kind", [Attn, Nested, WithoutKeyword, LiteralNone])
def test_a_layer_of_the_class_may_have_none(kind: type[Attn]) -> None:
    module = kind(None)
    assert fuser_of(module).sinks(module) is None


@pytest.mark.parametrize("kind", [Cast, ByGetattr, Indexed, Local])
def test_an_expression_that_cannot_be_read_is_an_error(kind: type[Attn]) -> None:
    module = kind(parameter())
    with pytest.raises(ValueError, match=rf"cannot be read.*|.*{kind.__name__}") as caught:
        fuser_of(module).sinks(module)
    assert "sinks" in str(caught.value) and kind.__name__ in str(caught.value)


@pytest.mark.parametrize("sinks", [torch.zeros(4), 1.0, parameter().view(2, 2), [0.0] * 4])
def test_sinks_that_are_no_parameter_of_one_dimension_are_an_error(sinks: Any) -> None:
    module = Attn(sinks)
    with pytest.raises(ValueError, match=r"`self\.sinks` in the attention call of Attn gives a"):
        fuser_of(module).sinks(module)


def test_a_name_that_the_module_lacks_is_an_error() -> None:
    module = Misnamed(parameter())
    with pytest.raises(ValueError, match="Misnamed has no attribute no_such"):
        fuser_of(module).sinks(module)


def test_two_calls_are_no_match() -> None:
    assert AttentionFuser.match(None, TwoCalls(parameter())) is None


@pytest.mark.parametrize("kind", [Attn, Nested])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fusing_gives_the_rank_its_share(
    kind: type[Attn], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rank(monkeypatch, rank=1, size=2)
    module = kind(parameter(4, dtype))
    fuser = fuser_of(module)
    fuser.fuse(module, "layers.0.self_attn", VllmConfig.__new__(VllmConfig))
    own = fuser.sinks(module)
    assert own is not None and own.shape == (2,) and own.dtype == dtype and not own.is_meta
    assert not own.requires_grad
    assert [name for name, _ in module.named_parameters()] in (["sinks"], ["inner.sinks"])
    own.weight_loader(own, torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=dtype))  # type: ignore[attr-defined]
    assert own.tolist() == [2.0, 3.0]


def test_heads_that_do_not_divide_by_the_ranks_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_rank(monkeypatch, rank=0, size=3)
    module = Attn(parameter(4))
    with pytest.raises(ValueError, match=r"attention sinks of 4 heads.*tensor_parallel_size=3"):
        fuser_of(module).fuse(module, "attn", VllmConfig.__new__(VllmConfig))


def test_fusing_a_layer_without_sinks_changes_nothing() -> None:
    module = Attn(None)
    fuser_of(module).fuse(module, "attn", VllmConfig.__new__(VllmConfig))
    assert module.sinks is None and not list(module.parameters())


def as_rank(monkeypatch: pytest.MonkeyPatch, *, rank: int, size: int) -> None:
    """Let layers be made as one of several ranks would make them."""
    for module in (
        "vllm.model_executor.layers.sharding",
        "vllm.model_executor.model_loader.weight_utils",
    ):
        monkeypatch.setattr(f"{module}.get_tensor_model_parallel_rank", lambda: rank)
        monkeypatch.setattr(f"{module}.get_tensor_model_parallel_world_size", lambda: size)
    assert parallel_state.get_tensor_model_parallel_world_size() == 1
