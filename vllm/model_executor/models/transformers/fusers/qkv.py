# SPDX-License-Identifier: Apache-2.0
"""Query, key and value projections of one input: one product instead of three."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import fx, nn

from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.models.transformers.fusers.attention import interface_call
from vllm.model_executor.models.transformers.fusers.base import (
    BaseFuser,
    Stacked,
    forward_source,
    linear_children,
    projections_of_one_input,
    share_projection,
)
from vllm.model_executor.models.transformers.linears import ROWWISE, style_of

MERGED = "qkv_proj"


@dataclass(frozen=True, slots=True)
class QKVFuser(BaseFuser):
    """Three linear layers that an attention module applies to the same variable.

    Attributes:
        names: the query, key and value projection, as the module calls them.
        output: the projection after attention; None if it is not in the module.
    """

    names: tuple[str, str, str]
    output: str | None

    redefines_forward: ClassVar[bool] = False

    @classmethod
    def match(cls, graph: fx.Graph | None, module: nn.Module) -> "QKVFuser | None":
        del graph
        definition = forward_source(type(module).forward)
        linears = linear_children(module)
        if definition is None or interface_call(type(module).forward) is None or len(linears) < 3:
            return None
        # The output projection reads another variable, so it is left out first.
        for output in (None, *linears):
            names = projections_of_one_input(
                definition, {n: c for n, c in linears.items() if n != output}
            )
            if len(names) == 3:
                q, k, v = sorted(names, key=lambda n: -linears[n].out_features)  # stable
                return None if hasattr(module, MERGED) else cls((q, k, v), output)
        return None

    def validate(self, module: nn.Module, vllm_config: VllmConfig) -> bool:
        """Whether the widths are whole heads and all or none add a bias."""
        linears = linear_children(module)
        if any(name not in linears for name in self.names):
            return False
        head_size = getattr(module, "head_dim", None)
        if not isinstance(head_size, int):
            return False
        q, k, v = (linears[name] for name in self.names)
        num_kv_heads = k.out_features // head_size
        return (
            q.out_features % head_size == 0
            and k.out_features % head_size == 0
            and v.out_features % num_kv_heads == 0
            and len({p.in_features for p in (q, k, v)}) == 1
            and len({(p.bias is None, p.weight.dtype) for p in (q, k, v)}) == 1
        )

    def fuse(self, module: nn.Module, prefix: str, vllm_config: VllmConfig) -> None:
        linears = linear_children(module)
        q, k, v = (linears[name] for name in self.names)
        head_size: int = module.head_dim  # type: ignore[assignment]
        num_kv_heads = k.out_features // head_size
        merged = QKVParallelLinear(
            q.in_features,
            head_size,
            q.out_features // head_size,
            num_kv_heads,
            bias=q.bias is not None,
            v_head_size=v.out_features // num_kv_heads,
            params_dtype=q.weight.dtype,
            prefix=f"{prefix}.{MERGED}",
            return_bias=False,
        )
        share_projection(module, self.names, MERGED, merged)

    def fits_tp_plan(self, prefix: str, plan: Mapping[str, str]) -> bool:
        """Whether a rank's own heads are enough; some models need all at once, to norm them."""
        styles = {style_of(f"{prefix}.{name}", plan) for name in self.names}
        return self.output is not None and styles <= {None, "colwise"}

    def tp_plan(self, prefix: str) -> dict[str, str]:
        return {f"{prefix}.{self.output}": ROWWISE}

    def orig_to_new_stacked(self, prefix: str) -> Stacked:
        return {
            f"{prefix}.{name}": (f"{prefix}.{MERGED}", part)
            for name, part in zip(self.names, ("q", "k", "v"), strict=True)
        }

    @property
    def packed_modules_mapping(self) -> dict[str, list[str]]:
        return {MERGED: list(self.names)}
