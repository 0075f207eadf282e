# SPDX-License-Identifier: Apache-2.0
"""Root-mean-square norm, alone and with the residual added first. Source: arXiv 1910.07467."""

import torch
from torch import Tensor

from vllm import _custom_ops as custom_ops
from vllm.ir.op import Tolerance, op


@op
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Bring the last dim of x to unit mean square in fp32, round to x's dtype, scale by weight.

    Args:
        x: [..., H], fp32, fp16 or bf16.
        weight: [H], dtype of x.
        eps: added to the mean square.

    Returns:
        [..., H], dtype of x.
    """
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


@op
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Norm of x + residual, and the sum itself, which is the next residual; both in x's dtype."""
    total = x + residual
    return rms_norm.reference(total, weight, eps), total


@op
def fused_add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """`add_rms_norm` in place: x becomes the norm, residual the sum. Shapes [..., H]."""
    normed, total = add_rms_norm.reference(x, residual, weight, eps)
    x.copy_(normed)
    residual.copy_(total)


_EXACT = Tolerance(2e-6, 2e-6, "fp32 sums in another order")
_BF16 = Tolerance(1e-2, 1.6e-2, "7-bit mantissa, one rounding apart after two")
_FP16 = Tolerance(2e-3, 2e-3, "10-bit mantissa, one rounding apart after two")
for _op in (rms_norm, add_rms_norm, fused_add_rms_norm_):
    _op.tolerance |= {torch.float32: _EXACT, torch.bfloat16: _BF16, torch.float16: _FP16}

_available = custom_ops.is_available()


@rms_norm.implement(
    "cpp", when=lambda x, weight, eps: custom_ops.takes_rows(x, weight), available=_available
)
def _rms_norm_cpp(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return custom_ops.rms_norm(x, weight, eps)


@fused_add_rms_norm_.implement(
    "cpp",
    when=lambda x, residual, weight, eps: (
        custom_ops.takes_rows(x, weight) and custom_ops.takes_rows(residual, weight)
    ),
    available=_available,
)
def _fused_add_rms_norm_cpp(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    custom_ops.fused_add_rms_norm_(x, residual, weight, eps)


@add_rms_norm.implement(
    "cpp",
    when=lambda x, residual, weight, eps: (
        custom_ops.takes_rows(x, weight) and custom_ops.takes_rows(residual, weight)
    ),
    available=_available,
)
def _add_rms_norm_cpp(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    normed, total = x.clone(), residual.clone()
    custom_ops.fused_add_rms_norm_(normed, total, weight, eps)
    return normed, total
