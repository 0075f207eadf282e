# SPDX-License-Identifier: Apache-2.0
"""The attention call of a module, read from its source.

Attention forwards seldom trace, but they all end in one call of a function taken from
Transformers' registry. Its keywords are expressions over the module; resolved per instance, so
that layers of one class may differ. An expression that cannot be resolved is an error: were it
taken for "none", the scale or the sinks would be dropped without a word.
"""

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn

from vllm.config import VllmConfig
from vllm.model_executor.layers.sharding import own_share
from vllm.model_executor.model_loader.weight_utils import sharded_weight_loader
from vllm.model_executor.models.transformers.fusers.base import BaseFuser, forward_source

VLLM_ATTN_IMPL = "vllm"
VLLM_MLA_ATTN_IMPL = "vllm_mla"
_REGISTRY = "ALL_ATTENTION_FUNCTIONS"


@dataclass(frozen=True, slots=True)
class AttentionFuser(BaseFuser):
    """One attention call.

    Attributes:
        source_cls: name of the class, for messages.
        scale_expr: expression of its `scaling` keyword; None if there is none.
        s_aux_expr: expression of its `s_aux` keyword, the attention sinks; None if there is none.
    """

    source_cls: str
    scale_expr: ast.expr | None
    s_aux_expr: ast.expr | None

    redefines_forward: ClassVar[bool] = False

    @classmethod
    def match(cls, graph: fx.Graph | None, module: nn.Module) -> "AttentionFuser | None":
        del graph
        call = interface_call(type(module).forward)
        if call is None:
            return None
        return cls(type(module).__name__, _keyword(call, "scaling"), _keyword(call, "s_aux"))

    def validate(self, module: nn.Module, vllm_config: VllmConfig) -> bool:
        """Whether the module's attention is the engine's; encoders beside a decoder keep theirs."""
        config = getattr(module, "config", None)
        implementation = getattr(config, "_attn_implementation", None)
        return implementation in (VLLM_ATTN_IMPL, VLLM_MLA_ATTN_IMPL)

    def fuse(self, module: nn.Module, prefix: str, vllm_config: VllmConfig) -> None:
        """Make the sinks, if there are any, this rank's own; the call itself stays.

        The parameter keeps its name, hence its place in the checkpoint, and its dtype. It has
        memory from here on, since the attention layer is given this very object.

        Raises:
            ValueError: see `sinks`; or the heads do not divide by the number of ranks.
        """
        sinks = self.sinks(module)
        if sinks is None:
            return
        assert isinstance(self.s_aux_expr, ast.Attribute), "only attributes resolve to a parameter"
        owner, name = self._resolve(self.s_aux_expr.value, module), self.s_aux_expr.attr
        share = own_share(sinks.numel(), f"{prefix}: attention sinks of {sinks.numel()} heads")
        with torch.device("cpu"):  # the modules around are being made on meta
            own = nn.Parameter(torch.empty(share.size, dtype=sinks.dtype), requires_grad=False)
        own.weight_loader = sharded_weight_loader(0)  # type: ignore[attr-defined]
        setattr(owner, name, own)

    @staticmethod
    def layer_index(module: nn.Module) -> int | None:
        """The layer this module says it is in."""
        index = getattr(module, "layer_idx", None)
        return index if isinstance(index, int) else None

    def scale(self, module: nn.Module) -> float | None:
        """Factor on q.k; None if the call names none.

        Raises:
            ValueError: the expression does not give a number.
        """
        if self.scale_expr is None:
            return None
        value = self._resolve(self.scale_expr, module)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self._where(self.scale_expr)} gives {value!r}, not a number")
        return float(value)

    def sinks(self, module: nn.Module) -> nn.Parameter | None:
        """One logit per query head; None if this instance has none.

        Raises:
            ValueError: the expression gives neither a parameter of one dimension nor None.
        """
        if self.s_aux_expr is None:
            return None
        value = self._resolve(self.s_aux_expr, module)
        if value is None or (isinstance(value, nn.Parameter) and value.dim() == 1):
            return value
        shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor) else ""
        raise ValueError(
            f"{self._where(self.s_aux_expr)} gives a {type(value).__name__}{shape}; attention "
            "sinks are a Parameter of shape [num_heads], or None"
        )

    def _resolve(self, expression: ast.expr, module: nn.Module) -> Any:
        """Value of an expression over the module.

        Raises:
            ValueError: it is neither a literal nor attributes of the module.
        """
        if isinstance(expression, ast.Constant):
            return expression.value
        names: list[str] = []
        node = expression
        if _is_self(node):
            return module
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and _is_self(node):
            return functools.reduce(_attribute, reversed(names), module)
        raise ValueError(
            f"{self._where(expression)} cannot be read before the model runs; only literals and "
            "attributes of the module can"
        )

    def _where(self, expression: ast.expr) -> str:
        return f"`{ast.unparse(expression)}` in the attention call of {self.source_cls}"


def _is_self(node: ast.expr) -> bool:
    """Whether an expression is `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def _attribute(value: Any, name: str) -> Any:
    if not hasattr(value, name):
        raise ValueError(f"{type(value).__name__} has no attribute {name}")
    return getattr(value, name)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    found = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return found[0] if found else None


@functools.cache
def interface_call(forward: Callable[..., Any]) -> ast.Call | None:
    """The one call in `forward` that goes through Transformers' registry of attention functions.

    None if there is no such call or more than one, or the source cannot be read.
    """
    definition = forward_source(forward)
    if definition is None:
        return None
    nodes = list(ast.walk(definition))
    names = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and _reads_registry(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in names)
            or (not _is_lookup(node) and _reads_registry(node.func))
        )
    ]
    return calls[0] if len(calls) == 1 else None


def _reads_registry(node: ast.expr) -> bool:
    """Whether an expression takes a function from the registry."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Name) and node.value.id == _REGISTRY
    return isinstance(node, ast.Call) and _is_lookup(node)


def _is_lookup(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in ("get_interface", "get")
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == _REGISTRY
    )
