# SPDX-License-Identifier: Apache-2.0
"""The product of activations with a row-major weight.

The own kernel streams the weight once at memory bandwidth for few rows and converts it block by
block for many; where torch's oneDNN has native bf16 products, many rows are left to it, in few
different numbers: it compiles code for each number it meets, some 0.7 MiB that stay and a
millisecond, for every shape of a weight.
"""

import torch
from torch import Tensor

from vllm import _custom_ops as custom_ops
from vllm.ir.op import Tolerance, op


@op
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, summed in fp32.

    Args:
        x: [..., K], fp32, fp16 or bf16.
        weight: [N, K], dtype of x, row-major.
        bias: [N] or None, dtype of x.

    Returns:
        [..., N], dtype of x.
    """
    return torch.nn.functional.linear(x, weight, bias)


linear.tolerance |= {
    torch.float32: Tolerance(2e-4, 1e-5, "4,096 terms of order 1, summed to order 100, one by one"),
    torch.bfloat16: Tolerance(6e-2, 2e-2, "7-bit mantissa; terms of order 1, sums of order 100"),
    torch.float16: Tolerance(1e-2, 4e-3, "10-bit mantissa, sums in another order"),
}


def _takes(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        custom_ops.takes_rows(x)
        and weight.is_contiguous()
        and weight.dtype == x.dtype
        and (bias is None or bias.dtype == x.dtype)
        and custom_ops.linear_is_faster(x.numel() // x.shape[-1] if x.shape[-1] else 0, x.dtype)
    )


@linear.implement("cpp", when=_takes, available=custom_ops.is_available())
def _linear_cpp(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return custom_ops.linear(x, weight, bias)


def _left_to_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == torch.bfloat16
        and x.shape[-1] > 0
        and not custom_ops.linear_is_faster(x.numel() // x.shape[-1], x.dtype)
    )


@linear.implement("onednn", when=_left_to_onednn, available=custom_ops.is_available())
def _linear_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    num_rows = rows.shape[0]
    padding = _padded(num_rows) - num_rows
    if padding:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, padding))
    out = torch.nn.functional.linear(rows, weight, bias)[:num_rows]
    return out.view(*x.shape[:-1], weight.shape[0])


def _padded(num_rows: int) -> int:
    """The next of 4 sizes per power of two (8 from 512 on); up to a quarter is waste."""
    step = 1 << max(3, (num_rows - 1).bit_length() - (3 if num_rows <= 512 else 4))
    return -(-num_rows // step) * step
