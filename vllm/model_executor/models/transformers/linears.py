# SPDX-License-Identifier: Apache-2.0
"""Linear layers of a Transformers model by its tensor-parallel plan.

The plan names modules by patterns and says how each is split. With one rank every style is the
whole layer, so the plan matters with several only.
"""

import fnmatch
from collections.abc import Mapping
from typing import Any

from torch import nn

from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.exceptions import ConfigError
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    ReplicatedLinear,
    RowParallelLinear,
)

REPLICATE, ROWWISE = "replicate", "rowwise"
_REPLICATED = (None, REPLICATE, "replicated_with_grad_allreduce", "mla_kv_a_proj")


def style_of(name: str, plan: Mapping[str, str]) -> str | None:
    """How the plan splits the module `name`; None if it does not."""
    return next((s for pattern, s in plan.items() if fnmatch.fnmatchcase(name, pattern)), None)


def replace_linear(linear: nn.Linear, style: str | None, prefix: str) -> LinearBase:
    """The engine's layer for a plain linear layer.

    Raises:
        ConfigError: the plan splits it in a way that this engine does not know, or unevenly.
    """
    options: dict[str, Any] = {
        "bias": linear.bias is not None,
        "params_dtype": linear.weight.dtype,
        "prefix": prefix,
        "return_bias": False,
    }
    sizes = (linear.in_features, linear.out_features)
    layer: LinearBase
    if style in _REPLICATED or get_tensor_model_parallel_world_size() == 1:
        layer = ReplicatedLinear(*sizes, **options)
    elif style == "colwise":
        layer = ColumnParallelLinear(*sizes, **options)
    elif style in ("colwise_gather_output", "colwise_rep"):
        layer = ColumnParallelLinear(*sizes, gather_output=True, **options)
    elif style == ROWWISE:
        layer = RowParallelLinear(*sizes, **options)
    elif style in ("rowwise_split_input", "rowwise_rep"):
        layer = RowParallelLinear(*sizes, input_is_parallel=False, **options)
    else:
        raise ConfigError(
            f"{prefix}: the model's tensor-parallel plan says {style!r}, which this engine does "
            "not know; pass tensor_parallel_size=1"
        )
    # Model code reads these of torch's layer.
    layer.in_features, layer.out_features = sizes  # type: ignore[assignment]
    return layer
