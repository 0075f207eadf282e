# SPDX-License-Identifier: Apache-2.0
"""What every fuser is, and how several projections of one input become one product.

A fuser recognises a module by its class once (`match`), is asked about each instance
(`validate`), and changes it (`fuse`). It never edits source: a fused module keeps its own
forward, whose calls meet stand-ins, or gets a new one that its own was shown to equal.
"""

import ast
import functools
import inspect
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import LinearBase, MergedColumnParallelLinear
from vllm.model_executor.model_loader.weight_utils import ShardId

Stacked = dict[str, tuple[str, ShardId]]


class BaseFuser(ABC):
    """One kind of fusion, found in one class of modules.

    Class attributes:
        redefines_forward: instances get another forward; one module takes at most one such fuser.
    """

    redefines_forward: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def match(cls, graph: fx.Graph | None, module: nn.Module) -> "BaseFuser | None":
        """The fuser for modules of this class, if it is of this kind.

        Args:
            graph: what the forward computes, where it can be traced.
            module: an instance, its parameters on the meta device.
        """

    def validate(self, module: nn.Module, vllm_config: VllmConfig) -> bool:
        """Whether this instance can be fused as its class can."""
        return True

    @abstractmethod
    def fuse(self, module: nn.Module, prefix: str, vllm_config: VllmConfig) -> None:
        """Change the instance; `prefix` is its qualified name."""

    def fits_tp_plan(self, prefix: str, plan: Mapping[str, str]) -> bool:
        """With several ranks: whether the instance can be split as the model's plan needs it."""
        return True

    def tp_plan(self, prefix: str) -> dict[str, str]:
        """How the modules that follow a fused one must be split; goes before the model's plan."""
        return {}

    def orig_to_new_stacked(self, prefix: str) -> Stacked:
        """Names of projections in the checkpoint -> (fused name, part)."""
        return {}

    @property
    def packed_modules_mapping(self) -> dict[str, list[str]]:
        """Fused name -> the names it takes the place of."""
        return {}


class SharedProjection:
    """One product for several projections of the same input.

    The module goes on calling each projection. The first call computes all, the others take
    their part, and the last one drops what was kept. A projection that is called with another
    tensor than the first is computed alone, so an unexpected order costs time, never the result.
    """

    def __init__(self, merged: LinearBase, sizes: Sequence[int]) -> None:
        self.merged = merged
        self.sizes = tuple(sizes)
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def parts(self) -> list["ProjectionPart"]:
        """A callable for each projection."""
        return [ProjectionPart(self, index) for index in range(len(self.sizes))]

    def project(self, index: int, x: Tensor) -> Tensor:
        """Output of projection `index` for x: [..., in] -> [..., sizes[index]]."""
        if index == 0:
            self._input = x
            self._outputs = self.merged(x).split_with_sizes(self.sizes, -1)
        elif x is not self._input:
            return self._alone(index, x)
        output = self._outputs[index]
        if index == len(self.sizes) - 1:
            self._input, self._outputs = None, ()
        return output

    def _alone(self, index: int, x: Tensor) -> Tensor:
        start, size = sum(self.sizes[:index]), self.sizes[index]
        bias = self.merged.bias
        return F.linear(
            x,
            self.merged.weight.narrow(0, start, size),
            None if bias is None else bias.narrow(0, start, size),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ProjectionPart:
    """Stands where a projection was; holds no parameters and is no module."""

    shared: SharedProjection
    index: int

    def __call__(self, x: Tensor) -> Tensor:
        return self.shared.project(self.index, x)


def share_projection(
    module: nn.Module,
    names: Sequence[str],
    merged_name: str,
    merged: MergedColumnParallelLinear,
) -> None:
    """Put `merged` into `module` and stand-ins in the places of the projections `names`."""
    sizes = merged.output_partition_sizes
    for name in names:
        del module._modules[name]
    module.add_module(merged_name, merged)
    for name, part in zip(names, SharedProjection(merged, sizes).parts(), strict=True):
        # Not through Module.__setattr__: the stand-in leads to `merged`, which is registered once.
        vars(module)[name] = part


@functools.cache
def forward_source(forward: Callable[..., Any]) -> ast.FunctionDef | None:
    """The parsed definition of a forward, without its decorators' wrapping; None if unreadable."""
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(forward)))
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return definition if isinstance(definition, ast.FunctionDef) else None


def self_attribute(node: ast.expr) -> str | None:
    """`name`, for the expression `self.name`."""
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ):
        return node.attr
    return None


def projections_of_one_input(definition: ast.FunctionDef, linears: Mapping[str, Any]) -> list[str]:
    """Names among `linears` that the forward applies to one unchanged variable, in order of calls.

    Empty if a name is used in any other way, or the variable is written between the calls.
    """
    calls: list[tuple[str, str, int]] = []
    uses = 0
    for node in ast.walk(definition):
        if isinstance(node, ast.expr) and self_attribute(node) in linears:
            uses += 1
        if not isinstance(node, ast.Call):
            continue
        name = self_attribute(node.func)
        if name in linears and len(node.args) == 1 and not node.keywords:
            argument = node.args[0]
            if isinstance(argument, ast.Name):
                assert name is not None, "it is among the linears"
                calls.append((name, argument.id, node.lineno))
    names = [name for name, _, _ in calls]
    if uses != len(calls) or len(set(names)) != len(names) or len({v for _, v, _ in calls}) != 1:
        return []
    first, last = min(line for *_, line in calls), max(line for *_, line in calls)
    for node in ast.walk(definition):
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Store):
            continue
        if node.id == calls[0][1] and first <= node.lineno <= last:
            return []
    return [name for name, _, _ in sorted(calls, key=lambda call: call[2])]


def trace(module: nn.Module) -> fx.Graph | None:
    """What the forward computes, with every child a leaf; None where it cannot be traced."""
    try:
        return _LeafTracer().trace(module)
    except Exception:  # control flow on values, or anything else the module's own code does
        return None


class _LeafTracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def linear_children(module: nn.Module) -> dict[str, nn.Linear]:
    """Children that are plain linear layers, by name."""
    return {n: c for n, c in module.named_children() if type(c) is nn.Linear}


def is_meta_free(module: nn.Module) -> bool:
    """Whether no parameter lies on the meta device."""
    return not any(p.is_meta for p in module.parameters())


def sample(shape: Sequence[int], seed: int) -> Tensor:
    """Random values of order one on the CPU, to compare what two functions do."""
    generator = torch.Generator().manual_seed(seed)
    with torch.device("cpu"):
        return torch.randn(tuple(shape), generator=generator, dtype=torch.float32)
