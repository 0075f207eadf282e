# SPDX-License-Identifier: Apache-2.0
"""The attention call of a module, read from its source.

Attention forwards seldom trace, but they all end in one call of a function taken from
Transformers' registry. Its keywords are expressions over the module; resolved per instance, so
that layers of one class may differ. An expression that cannot be resolved is an error.
"""

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx, nn

from vllm.config import VllmConfig
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
    """

    source_cls: str
    scale_expr: ast.expr | None

    redefines_forward: ClassVar[bool] = False

    @classmethod
    def match(cls, graph: fx.Graph | None, module: nn.Module) -> "AttentionFuser | None":
        del graph
        call = interface_call(type(module).forward)
        if call is None:
            return None
        return cls(type(module).__name__, _keyword(call, "scaling"))

    def validate(self, module: nn.Module, vllm_config: VllmConfig) -> bool:
        """Whether the module's attention is the engine's; encoders beside a decoder keep theirs."""
        config = getattr(module, "config", None)
        implementation = getattr(config, "_attn_implementation", None)
        return implementation in (VLLM_ATTN_IMPL, VLLM_MLA_ATTN_IMPL)

    def fuse(self, module: nn.Module, prefix: str, vllm_config: VllmConfig) -> None:
        """Nothing to change: the call stays, and finds the engine's function."""

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

    def _resolve(self, expression: ast.expr, module: nn.Module) -> Any:
        """Value of an expression over the module.

        Raises:
            ValueError: it is neither a literal nor attributes of the module.
        """
        if isinstance(expression, ast.Constant):
            return expression.value
        names: list[str] = []
        node = expression
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if names and isinstance(node, ast.Name) and node.id == "self":
            return functools.reduce(_attribute, reversed(names), module)
        raise ValueError(
            f"{self._where(expression)} cannot be read before the model runs; only literals and "
            "attributes of the module can"
        )

    def _where(self, expression: ast.expr) -> str:
        return f"`{ast.unparse(expression)}` in the attention call of {self.source_cls}"


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
