# SPDX-License-Identifier: Apache-2.0
"""SiLU of the first half times the second half: the gated MLP's activation."""

import torch
from torch import Tensor

from vllm import _custom_ops as custom_ops
from vllm.ir.op import Tolerance, op


@op
def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[..., :d]) * x[..., d:].

    Args:
        x: [..., 2 * d], fp32, fp16 or bf16; gate first, then up.

    Returns:
        [..., d], dtype of x.
    """
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


silu_and_mul.tolerance |= {
    torch.float32: Tolerance(2e-6, 4e-6, "exp by polynomial"),
    torch.bfloat16: Tolerance(1e-2, 1.6e-2, "7-bit mantissa; the kernel rounds once, not twice"),
    torch.float16: Tolerance(1e-3, 2e-3, "10-bit mantissa; the kernel rounds once, not twice"),
}


@silu_and_mul.implement(
    "cpp",
    when=lambda x: custom_ops.takes_rows(x) and x.shape[-1] % 2 == 0,
    available=custom_ops.is_available(),
)
def _silu_and_mul_cpp(x: Tensor) -> Tensor:
    return custom_ops.silu_and_mul(x)
