# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square norms, found by what they do: a norm under any name, not a name that is one.

A candidate is run over random values with random weights. If it does what the engine's norm
does, to the last bit of the model's dtype, it is replaced; a norm with another rounding or
another formula keeps its own code.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx, nn

from vllm.config import VllmConfig
from vllm.ir.ops import rms_norm
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.models.transformers.fusers.base import BaseFuser, sample

_ROWS = 3
_MARGIN = 2e-6


@dataclass(frozen=True, slots=True)
class RMSNormFuser(BaseFuser):
    """A module that owns one weight and normalises the last dimension.

    Attributes:
        eps_name: the attribute that is added to the mean square.
    """

    eps_name: str

    redefines_forward: ClassVar[bool] = False

    @classmethod
    def match(cls, graph: fx.Graph | None, module: nn.Module) -> "RMSNormFuser | None":
        del graph
        weight = _only_weight(module)
        if weight is None or isinstance(module, RMSNorm):
            return None
        numbers = [n for n, v in vars(module).items() if isinstance(v, float) and 0 < v < 1]
        for name in numbers:
            if _is_rms_norm(module, name, weight.dtype):
                return cls(name)
        return None

    def validate(self, module: nn.Module, vllm_config: VllmConfig) -> bool:
        """Whether this instance, whose constants may differ, is one as well."""
        weight = _only_weight(module)
        return weight is not None and _is_rms_norm(module, self.eps_name, weight.dtype)

    def fuse(self, module: nn.Module, prefix: str, vllm_config: VllmConfig) -> None:
        """The caller puts `replacement` in the module's place; nothing is left to change here."""

    def replacement(self, module: nn.Module) -> RMSNorm:
        """The engine's norm with the same weight and constant."""
        weight = _only_weight(module)
        assert weight is not None, "match has found it"
        norm = RMSNorm(weight.shape[0], getattr(module, self.eps_name), dtype=weight.dtype)
        norm.weight = weight
        return norm


def _only_weight(module: nn.Module) -> nn.Parameter | None:
    parameters = dict(module.named_parameters())
    is_leaf = not any(True for _ in module.children())
    has_buffers = any(True for _ in module.buffers())
    weight = parameters.get("weight")
    if not is_leaf or has_buffers or len(parameters) != 1 or weight is None or weight.dim() != 1:
        return None
    return weight


def _is_rms_norm(module: nn.Module, eps_name: str, dtype: torch.dtype) -> bool:
    """Whether the module computes `rms_norm` with this constant, and the constant matters."""
    weight = _only_weight(module)
    assert weight is not None, "the caller has checked"
    size = weight.shape[0]
    with torch.no_grad(), torch.device("cpu"):
        # Rows of very different size: with small ones the constant decides the result.
        x = sample((_ROWS, size), seed=1) * torch.tensor([[1.0], [1e-3], [30.0]])
        x, values = x.to(dtype), (1.0 + 0.5 * sample((size,), seed=2)).to(dtype)
        twin = copy.copy(module)
        twin._parameters = {"weight": nn.Parameter(values, requires_grad=False)}
        try:
            for eps in (getattr(module, eps_name), 0.25):
                setattr(twin, eps_name, eps)
                expected = rms_norm.reference(x, values, eps)
                result = twin(x)
                if not isinstance(result, torch.Tensor) or not _equal(result, expected):
                    return False
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return False
    return True


def _equal(result: torch.Tensor, expected: torch.Tensor) -> bool:
    if result.dtype != expected.dtype or result.shape != expected.shape:
        return False
    if expected.dtype == torch.float32:
        return torch.allclose(result, expected, atol=_MARGIN, rtol=_MARGIN)
    return torch.equal(result, expected)
