# SPDX-License-Identifier: Apache-2.0
"""Unpacking ggml's block formats, vectorised; several times faster than the `gguf` package's code,
which is the oracle in tests. Formats: ggml's block_q* structures.

The functions q* take blocks as bytes [num_blocks, block_bytes] and return fp32 values
[num_blocks, block_size]. Rows are taken in pieces, so that the fp32 values of a whole tensor never
exist at once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

# Bounds the fp32 copy. Pieces that fit the second-level cache, on threads of our own, took twice as
# long: the calls then cost more than the arithmetic.
_CHUNK_ELEMENTS = 1 << 20


def _half(blocks: Tensor, start: int) -> Tensor:
    """The fp16 at byte `start` of each block, as fp32 [num_blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[B, n] bytes to [B, 2 n]: all low halves, then all high halves."""
    return torch.cat((packed & 0x0F, packed >> 4), dim=1)


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """The 32 bits at byte `start`, as 0 or 16 per element, [B, 32]."""
    bits = blocks[:, start : start + 4, None] >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).flatten(1) << 4


def q4_0(b: Tensor) -> Tensor:
    """fp16 d, 32 x 4 bits: d * (q - 8)."""
    return _nibbles(b[:, 2:]).float().sub_(8).mul_(_half(b, 0))


def q4_1(b: Tensor) -> Tensor:
    """fp16 d, fp16 m, 32 x 4 bits: d * q + m."""
    return _nibbles(b[:, 4:]).float().mul_(_half(b, 0)).add_(_half(b, 2))


def q5_0(b: Tensor) -> Tensor:
    """fp16 d, 32 fifth bits, 32 x 4 bits: d * (q - 16)."""
    q = _nibbles(b[:, 6:]) | _fifth_bits(b, 2)
    return q.float().sub_(16).mul_(_half(b, 0))


def q5_1(b: Tensor) -> Tensor:
    """fp16 d, fp16 m, 32 fifth bits, 32 x 4 bits: d * q + m."""
    q = _nibbles(b[:, 8:]) | _fifth_bits(b, 4)
    return q.float().mul_(_half(b, 0)).add_(_half(b, 2))


def q8_0(b: Tensor) -> Tensor:
    """fp16 d, 32 x int8: d * q."""
    return b[:, 2:].view(torch.int8).float().mul_(_half(b, 0))


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """12 bytes to 8 scales and 8 minima of 6 bits: [B, 8] each.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits; bytes 8-11 hold the
    low four bits of scales and minima 4-7, whose upper two bits top bytes 0-7.
    """
    low, mid, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), dim=1)
    minima = torch.cat((mid & 63, (high >> 4) | ((mid >> 6) << 4)), dim=1)
    return scales.float(), minima.float()


def _k_values(b: Tensor, q: Tensor) -> Tensor:
    """Scale 8 sub-blocks q [B, 8, 32] by the header that Q4_K and Q5_K share."""
    scales, minima = _k_scales(b[:, 4:16])
    scale, minimum = _half(b, 0) * scales, _half(b, 2) * minima
    return (scale[:, :, None] * q.float() - minimum[:, :, None]).flatten(1)


def _k_nibbles(packed: Tensor) -> Tensor:
    """[B, 128] bytes to [B, 8, 32]: 32 bytes give two sub-blocks, low halves first."""
    quarters = packed.reshape(-1, 4, 32)
    return torch.stack((quarters & 0x0F, quarters >> 4), dim=2).flatten(1, 2)


def q4_k(b: Tensor) -> Tensor:
    """256 x 4 bits in 8 sub-blocks with 6-bit scales and minima."""
    return _k_values(b, _k_nibbles(b[:, 16:]))


def q5_k(b: Tensor) -> Tensor:
    """Q4_K with a fifth bit: bit i of byte j belongs to element j of sub-block i."""
    fifth = (b[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[None, :, None]) & 1
    return _k_values(b, _k_nibbles(b[:, 48:]) | (fifth << 4))


def q6_k(b: Tensor) -> Tensor:
    """256 x 6 bits in 16 sub-blocks with int8 scales: d * scale * (q - 32)."""
    low = b[:, :128].reshape(-1, 2, 2, 32)  # half, byte row, byte
    low = torch.stack((low & 0x0F, low >> 4), dim=2)  # half, nibble, byte row, byte
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 2, 2, 1)
    high = (b[:, 128:192].reshape(-1, 2, 1, 1, 32) >> shifts) & 3
    q = (low | (high << 4)).reshape(-1, 16, 16).float() - 32
    scales = b[:, 192:208].view(torch.int8).float()
    return (_half(b, 208)[:, :, None] * scales[:, :, None] * q).flatten(1)


_UNPACK: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def dequantize_rows(
    rows: "np.ndarray[Any, np.dtype[np.uint8]]",
    tensor_type: GGMLQuantizationType,
    dtype: torch.dtype,
) -> Tensor:
    """Unpack whole rows.

    Args:
        rows: uint8 [num_rows, row_bytes], a whole number of blocks a row.
        tensor_type: how they are stored.
        dtype: of the result.

    Returns:
        [num_rows, row_length], own memory.
    """
    block_size, block_bytes = GGML_QUANT_SIZES[tensor_type]
    num_rows, row_bytes = rows.shape
    columns = row_bytes // block_bytes * block_size
    out = torch.empty(num_rows, columns, dtype=dtype)
    step = max(1, _CHUNK_ELEMENTS // columns)

    for first in range(0, num_rows, step):
        chunk = torch.from_numpy(np.ascontiguousarray(rows[first : first + step]))
        if tensor_type.name in _PLAIN:
            values = chunk.view(_PLAIN[tensor_type.name])
        else:
            values = _UNPACK[tensor_type.name](chunk.view(-1, block_bytes))
        out[first : first + step] = values.view(-1, columns)
    return out
