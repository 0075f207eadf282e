# SPDX-License-Identifier: Apache-2.0
"""Activation functions by the names that configurations use, in their gated form."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from vllm.exceptions import ConfigError
from vllm.ir.ops import silu_and_mul
from vllm.model_executor.custom_op import CustomOp


@CustomOp.register("silu_and_mul")
class SiluAndMul(CustomOp):
    """silu(gate) * up, for x = [gate, up] along the last dim: [..., 2 d] -> [..., d]."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(x)


@CustomOp.register("gelu_and_mul")
class GeluAndMul(CustomOp):
    """gelu(gate) * up, for x = [gate, up] along the last dim: [..., 2 d] -> [..., d]."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ConfigError(f"approximate={approximate!r}: pass 'none' or 'tanh'")
        self.approximate = approximate

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate, approximate=self.approximate) * up


_TANH_GELUS = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")

_GATED: dict[str, Callable[[], nn.Module]] = {
    "gelu": GeluAndMul,
    "silu": SiluAndMul,
    "swish": SiluAndMul,
    **{name: functools.partial(GeluAndMul, approximate="tanh") for name in _TANH_GELUS},
}


def get_act_and_mul_fn(name: str) -> nn.Module:
    """The gated form of activation `name`: [..., 2 d] -> [..., d].

    Raises:
        ConfigError: unknown name, or no gated form.
    """
    make = _GATED.get(name)
    if make is None:
        raise ConfigError(
            f"hidden_act={name!r} is not supported here; supported are " + ", ".join(sorted(_GATED))
        )
    return make()
