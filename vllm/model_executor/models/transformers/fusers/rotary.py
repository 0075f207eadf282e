# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding of an attention module: the engine's op in place of a function.

The function is found by its call, `q, k = f(q, k, cos, sin)`, and known by what it does to random
values. The module then gets its own forward over a scope in which that name is the op.
"""

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from vllm.config import VllmConfig
from vllm.ir.ops import rotary_embedding
from vllm.model_executor.models.transformers.fusers.attention import interface_call
from vllm.model_executor.models.transformers.fusers.base import BaseFuser, forward_source, sample

_TABLE = "_vllm_rotary_table"
_MARGIN = 2e-6
# Where wrappers come from that do nothing here: one looks whether such a function has a kernel on
# the hub, the other renames keywords that callers outside of the model may still use.
_IDLE_WRAPPERS = ("kernels.", "transformers.utils.deprecation")


@dataclass(frozen=True, slots=True)
class RotaryFuser(BaseFuser):
    """One call of a function that rotates queries and keys by halves.

    Attributes:
        name: what the forward calls the function.
    """

    name: str

    redefines_forward: ClassVar[bool] = True

    @classmethod
    def match(cls, graph: fx.Graph | None, module: nn.Module) -> "RotaryFuser | None":
        del graph
        forward = _own_forward(type(module))
        definition = forward_source(type(module).forward)
        if forward is None or definition is None or interface_call(type(module).forward) is None:
            return None
        name = _rotary_call(definition)
        function = None if name is None else forward.__globals__.get(name)
        return None if name is None or not _rotates_halves(function) else cls(name)

    def fuse(self, module: nn.Module, prefix: str, vllm_config: VllmConfig) -> None:
        forward = _own_forward(type(module))
        assert forward is not None, "match has found it"
        vars(module)["forward"] = MethodType(_over_op(forward, self.name), module)


class RotaryFunction:
    """Stands where the function was; calls it for what the op does not take."""

    def __init__(self, function: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.function = function

    def __call__(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[1, heads, T, D], [1, KV heads, T, D], [1, T, D], [1, T, D] -> both, rotated."""
        _, _, num_tokens, head_size = query.shape
        table = None
        if (
            not query.is_meta
            and cos.shape == sin.shape == (1, num_tokens, head_size)
            and head_size % 2 == 0
        ):
            table = _table(cos, sin)
        if table is None or len(query) != 1 or key.shape[-1] != head_size:
            return self.function(query, key, cos, sin)
        rows, cos_sin = table
        rotated = rotary_embedding(rows, _by_token(query), _by_token(key), cos_sin, head_size, True)
        query, key = (x.view(1, num_tokens, -1, head_size).transpose(1, 2) for x in rotated)
        return query, key


def _table(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor] | None:
    """A step's rows, [T] int64, and its cosines and sines as the op takes them, [T, D] fp32.

    Made by the step's first layer and kept on `cos`. None if the halves differ.
    """
    known = getattr(cos, _TABLE, None)
    if known is None or known[0] is not sin:
        (cos_a, cos_b), (sin_a, sin_b) = cos[0].chunk(2, -1), sin[0].chunk(2, -1)
        table = None
        if torch.equal(cos_a, cos_b) and torch.equal(sin_a, sin_b):
            rows = torch.arange(cos.shape[1], device=cos.device)
            table = rows, torch.cat((cos_a, sin_a), -1).float()
        known = (sin, table)
        setattr(cos, _TABLE, known)
    found: tuple[Tensor, Tensor] | None = known[1]
    return found


def _by_token(x: Tensor) -> Tensor:
    """[1, N, T, D] -> [T, N * D]; a view where tokens came first in memory, as they mostly do."""
    return x.transpose(1, 2).reshape(x.shape[2], -1)


def _own_forward(cls: type[nn.Module]) -> FunctionType | None:
    """The forward that the class defines; None if something unknown is wrapped around it."""
    forward: Any = cls.forward
    while hasattr(forward, "__wrapped__"):
        if not forward.__globals__["__name__"].startswith(_IDLE_WRAPPERS):
            return None
        forward = forward.__wrapped__
    return forward if isinstance(forward, FunctionType) else None


def _rotary_call(definition: ast.FunctionDef) -> str | None:
    """The name `f` of the one statement `a, b = f(a, b, c, d)`; None unless there is one."""
    names = []
    for node in ast.walk(definition):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        target, call = node.targets[0], node.value
        if not isinstance(target, ast.Tuple) or not isinstance(call.func, ast.Name):
            continue
        arguments = [a.id for a in call.args if isinstance(a, ast.Name)]
        results = [t.id for t in target.elts if isinstance(t, ast.Name)]
        if len(call.args) == len(arguments) == 4 and arguments[:2] == results and not call.keywords:
            names.append(call.func.id)
    return names[0] if len(names) == 1 else None


@functools.cache
def _rotates_halves(function: Any) -> bool:
    """Whether a function does what the op does, for any number of heads."""
    if not callable(function):
        return False
    cos, sin = (sample((1, 3, 8), seed).repeat(1, 1, 2) for seed in (1, 2))
    for query_heads, key_heads in ((4, 2), (1, 1), (3, 3)):
        query, key = sample((1, query_heads, 3, 16), 3), sample((1, key_heads, 3, 16), 4)
        try:
            result = function(query, key, cos, sin)
        except Exception:  # a function of another kind, which may do anything
            return False
        expected = RotaryFunction(function)(query, key, cos, sin)
        if not isinstance(result, tuple) or len(result) != 2:
            return False
        if not all(_equal(a, b) for a, b in zip(result, expected, strict=True)):
            return False
    return True


def _equal(result: Any, expected: Tensor) -> bool:
    return (
        isinstance(result, Tensor)
        and result.shape == expected.shape
        and torch.allclose(result, expected, atol=_MARGIN, rtol=_MARGIN)
    )


@functools.cache
def _over_op(forward: FunctionType, name: str) -> FunctionType:
    """The same code over a scope in which `name` is the op."""
    scope = {**forward.__globals__, name: RotaryFunction(forward.__globals__[name])}
    twin = FunctionType(
        forward.__code__, scope, forward.__name__, forward.__defaults__, forward.__closure__
    )
    twin.__kwdefaults__ = forward.__kwdefaults__
    return twin
