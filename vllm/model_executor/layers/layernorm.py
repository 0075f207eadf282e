# SPDX-License-Identifier: Apache-2.0
"""Normalisation. Owns the weight and the choice between plain and fused; the ops do the rest."""

import torch
from torch import nn

from vllm.ir.ops import fused_add_rms_norm_, rms_norm
from vllm.model_executor.custom_op import CustomOp


@CustomOp.register("rms_norm")
class RMSNorm(CustomOp):
    """Root-mean-square norm over the last dim, with an optional fused residual add."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-6, *, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.variance_epsilon = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=dtype), requires_grad=False)

    def forward_native(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Normalise `x`, or `x + residual`.

        Args:
            x: [..., hidden_size]; last dim contiguous.
            residual: same shape; the sum is written into it, and the result into `x`.

        Returns:
            The normalised tensor; with `residual` also the sum, both in place.
        """
        if residual is None:
            return rms_norm(x, self.weight, self.variance_epsilon)
        fused_add_rms_norm_(x, residual, self.weight, self.variance_epsilon)
        return x, residual

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, eps={self.variance_epsilon}"
