# SPDX-License-Identifier: Apache-2.0
"""Gated MLPs, `down(act(gate(x)) * up(x))`: one product for gate and up, activation fused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from vllm.config import VllmConfig
from vllm.model_executor.layers.activation import get_act_and_mul_fn
from vllm.model_executor.layers.linear import MergedColumnParallelLinear
from vllm.model_executor.models.transformers.fusers.base import (
    BaseFuser,
    Stacked,
    linear_children,
    sample,
)
from vllm.model_executor.models.transformers.linears import ROWWISE

MERGED = "gate_up_proj"
_IDENTITIES = (nn.Identity, nn.Dropout)


@dataclass(frozen=True, slots=True)
class GLUFuser(BaseFuser):
    """A module that is a gated MLP and nothing else.

    Attributes:
        gate: projection under the activation.
        up: projection beside it.
        act: the activation.
        down: projection of the product.
    """

    gate: str
    up: str
    act: str
    down: str

    redefines_forward: ClassVar[bool] = True

    @classmethod
    def match(cls, graph: fx.Graph | None, module: nn.Module) -> "GLUFuser | None":
        if graph is None:
            return None
        found = _match_graph(graph, linear_children(module))
        return None if found is None or hasattr(module, MERGED) else cls(*found)

    def validate(self, module: nn.Module, vllm_config: VllmConfig) -> bool:
        """Whether gate and up are alike and the activation has a gated form."""
        linears = linear_children(module)
        if any(name not in linears for name in (self.gate, self.up, self.down)):
            return False
        gate, up = linears[self.gate], linears[self.up]
        same = (gate.bias is None) == (up.bias is None) and gate.weight.shape == up.weight.shape
        same = same and gate.weight.dtype == up.weight.dtype
        return same and activation_name(getattr(module, self.act)) is not None

    def fuse(self, module: nn.Module, prefix: str, vllm_config: VllmConfig) -> None:
        linears = linear_children(module)
        gate, up = linears[self.gate], linears[self.up]
        name = activation_name(getattr(module, self.act))
        assert name is not None, "validate has found it"
        merged = MergedColumnParallelLinear(
            gate.in_features,
            [gate.out_features, up.out_features],
            bias=gate.bias is not None,
            params_dtype=gate.weight.dtype,
            prefix=f"{prefix}.{MERGED}",
            return_bias=False,
        )
        del module._modules[self.gate], module._modules[self.up]
        module.add_module(MERGED, merged)
        module.add_module(self.act, get_act_and_mul_fn(name))
        module.forward = _gated_forward(module, self.act, self.down)

    def tp_plan(self, prefix: str) -> dict[str, str]:
        return {f"{prefix}.{self.down}": ROWWISE}

    def orig_to_new_stacked(self, prefix: str) -> Stacked:
        return {
            f"{prefix}.{self.gate}": (f"{prefix}.{MERGED}", 0),
            f"{prefix}.{self.up}": (f"{prefix}.{MERGED}", 1),
        }

    @property
    def packed_modules_mapping(self) -> dict[str, list[str]]:
        return {MERGED: [self.gate, self.up]}


def _gated_forward(module: nn.Module, act: str, down: str) -> Callable[[Tensor], Tensor]:
    # The children are looked up at each call: the down projection is replaced after this.
    children = module._modules

    def forward(hidden_states: Tensor) -> Tensor:
        """[..., hidden_size] -> [..., hidden_size]."""
        merged, act_fn, output = children[MERGED], children[act], children[down]
        assert merged is not None and act_fn is not None and output is not None
        result: Tensor = output(act_fn(merged(hidden_states)))
        return result

    return forward


def _match_graph(graph: fx.Graph, linears: dict[str, nn.Linear]) -> tuple[str, ...] | None:
    """Names of gate, up, act and down, if the graph computes exactly that."""
    nodes = [n for n in graph.nodes if not _is_identity(n)]
    calls = [n for n in nodes if n.op == "call_module"]
    products = [n for n in nodes if n.op in ("call_function", "call_method")]
    inputs = [n for n in nodes if n.op == "placeholder" and n.users]
    if len(calls) != 4 or len(products) != 1 or len(inputs) != 1 or len(nodes) < 7:
        return None
    product = products[0]
    is_mul = product.target in (torch.mul, "mul") or getattr(product.target, "__name__", "") in (
        "mul",
        "imul",
    )
    if not is_mul or len(product.args) != 2 or product.kwargs:
        return None
    left, right = (_skip_identities(a) for a in product.args)
    for act, up in ((left, right), (right, left)):
        gate = _only_input(act)
        down = next((n for n in calls if _only_input(n) is product), None)
        if gate is None or down is None or act is None or up is None:
            continue
        names = [str(n.target) for n in (gate, up, act, down)]
        is_glu = (
            all(n.op == "call_module" for n in (gate, up, act, down))
            and _only_input(gate) is inputs[0]
            and _only_input(up) is inputs[0]
            and names[0] in linears
            and names[1] in linears
            and names[2] not in linears
            and names[3] in linears
            and _returns(graph, down)
        )
        if is_glu:
            return tuple(names)
    return None


def _is_identity(node: fx.Node) -> bool:
    if node.op != "call_module":
        return False
    owner = node.graph.owning_module
    child = owner.get_submodule(str(node.target)) if owner is not None else None
    return isinstance(child, _IDENTITIES)


def _skip_identities(node: object) -> fx.Node | None:
    while isinstance(node, fx.Node) and _is_identity(node):
        node = node.args[0]
    return node if isinstance(node, fx.Node) else None


def _only_input(node: fx.Node | None) -> fx.Node | None:
    if node is None or len(node.args) != 1 or node.kwargs:
        return None
    return _skip_identities(node.args[0])


def _returns(graph: fx.Graph, node: fx.Node) -> bool:
    output = next(n for n in graph.nodes if n.op == "output")
    return _skip_identities(output.args[0]) is node


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def activation_name(module: object) -> str | None:
    """Which activation a module computes, found by what it does; None if none that is known."""
    if not isinstance(module, nn.Module) or any(True for _ in module.parameters()):
        return None
    x = sample((64,), seed=0) * 4
    with torch.no_grad(), torch.device("cpu"):
        result = module(x)
        for name, function in _ACTIVATIONS.items():
            if isinstance(result, Tensor) and torch.allclose(result, function(x), atol=1e-6):
                return name
    return None
