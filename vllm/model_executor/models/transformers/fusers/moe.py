# SPDX-License-Identifier: Apache-2.0
"""Routed experts: the engine's forward over the stacked weights that Transformers keeps.

Transformers' expert modules share one contract: stacked weights, a gate that the module may
redefine, and a dispatch by name. The router stays the model's own. Each expert's tokens are
gathered, run through its two products and put back at their places, so the result does not
depend on the order of experts.

E experts, H hidden size, I intermediate size of this rank, T tokens, K experts per token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, fx, nn

from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.exceptions import ConfigError, ModelLoadError
from vllm.ir.ops import linear
from vllm.model_executor.layers.sharding import own_share
from vllm.model_executor.models.transformers.fusers.base import BaseFuser

_CONTRACT = ("is_transposed", "is_concatenated", "has_gate", "has_bias", "has_post_expert_norm")


@dataclass(frozen=True, slots=True)
class MoEBlockFuser(BaseFuser):
    """A module with stacked expert weights that dispatches its forward by name."""

    redefines_forward: ClassVar[bool] = False

    @classmethod
    def match(cls, graph: fx.Graph | None, module: nn.Module) -> "MoEBlockFuser | None":
        del graph
        has_contract = all(hasattr(module, name) for name in _CONTRACT)
        return cls() if has_contract and hasattr(module, "down_proj") else None

    def fuse(self, module: nn.Module, prefix: str, vllm_config: VllmConfig) -> None:
        """Keep this rank's share of every expert's intermediate dimension.

        Raises:
            ConfigError: it does not split evenly, or a norm stands behind the sum over ranks.
        """
        if get_tensor_model_parallel_world_size() == 1:
            return
        if module.has_post_expert_norm:
            raise ConfigError(
                f"{prefix}: a norm follows each expert, which cannot be split over ranks; pass "
                "tensor_parallel_size=1"
            )
        first = "gate_up_proj" if module.has_gate else "up_proj"
        num_parts = 2 if module.has_gate and module.is_concatenated else 1
        out_axis, in_axis = (2, 1) if module.is_transposed else (1, 2)
        _split(module, first, prefix, axis=out_axis, num_parts=num_parts)
        _split(module, "down_proj", prefix, axis=in_axis, num_parts=1)
        if module.has_bias:
            _split(module, f"{first}_bias", prefix, axis=1, num_parts=num_parts)


def _split(module: nn.Module, name: str, prefix: str, *, axis: int, num_parts: int) -> None:
    """Replace a parameter by this rank's share along `axis`, taken from each of its parts."""
    whole = module._parameters[name]
    assert whole is not None, "the contract names it"
    size = whole.shape[axis] // num_parts
    share = own_share(size, f"{prefix}.{name} intermediate size")
    shape = list(whole.shape)
    shape[axis] = share.size * num_parts
    param = nn.Parameter(whole.new_empty(shape), requires_grad=False)
    expected = list(whole.shape)

    def weight_loader(target: Tensor, loaded: Tensor) -> None:
        if list(loaded.shape) != expected:
            raise ModelLoadError(
                f"{prefix}.{name}: the checkpoint holds shape {list(loaded.shape)}, this layer "
                f"needs {expected}"
            )
        for part in range(num_parts):
            target.narrow(axis, part * share.size, share.size).copy_(
                loaded.narrow(axis, part * size + share.start, share.size)
            )

    param.weight_loader = weight_loader  # type: ignore[attr-defined]
    module._parameters[name] = param


def vllm_experts_forward(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Weighed sum of the chosen experts' outputs.

    Args:
        module: stacked weights under Transformers' names.
        hidden_states: [T, H].
        top_k_index: [T, K], experts of each token.
        top_k_weights: [T, K], their weights.

    Returns:
        [T, H], dtype of `hidden_states`.
    """
    num_tokens, num_chosen = top_k_index.shape
    chosen = top_k_index.reshape(-1)
    order = torch.argsort(chosen, stable=True)
    outputs = hidden_states.new_empty(num_tokens * num_chosen, hidden_states.shape[-1])
    rows, start = order // num_chosen, 0
    num_experts = module.get_parameter("down_proj").shape[0]
    counts = torch.bincount(chosen, minlength=num_experts)
    for expert, count in enumerate(counts.tolist()):
        if count:
            end = start + count
            outputs[order[start:end]] = _expert(module, expert, hidden_states[rows[start:end]])
            start = end
    weighed = outputs.view(num_tokens, num_chosen, -1) * top_k_weights.unsqueeze(-1)
    return tensor_model_parallel_all_reduce(weighed.sum(dim=1).to(hidden_states.dtype))


def _expert(module: nn.Module, expert: int, x: Tensor) -> Tensor:
    """One expert's output for its tokens: [n, H] -> [n, H], this rank's part of the sum."""
    first = "gate_up_proj" if module.has_gate else "up_proj"
    activate: Callable[[Tensor], Tensor] = (
        module._apply_gate if module.has_gate else module.act_fn  # type: ignore[assignment]
    )
    inner = activate(_product(module, first, expert, x, with_bias=True))
    # The bias of the second product is added once, by one rank, before the sum over ranks.
    output = _product(
        module, "down_proj", expert, inner, with_bias=get_tensor_model_parallel_rank() == 0
    )
    if module.has_post_expert_norm:
        output = module.post_expert_norm(output)  # type: ignore[operator]
    return output


def _product(module: nn.Module, name: str, expert: int, x: Tensor, *, with_bias: bool) -> Tensor:
    stacked: Tensor = getattr(module, name)
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias and with_bias else None
    if not module.is_transposed:
        return linear(x, stacked[expert], bias)
    return (
        torch.matmul(x, stacked[expert]) if bias is None else torch.addmm(bias, x, stacked[expert])
    )
