# SPDX-License-Identifier: Apache-2.0
"""The one door to the compiled kernels: loads the extension, says what is there, and launches.

Each launcher's predicate (`takes_rows`) has checked dtype, device and strides; the launcher
checks shapes, then trusts. Without the extension everything here says so and ops run on their
definitions.
"""

import functools
import importlib
import logging
from types import ModuleType

import torch
from torch import Tensor

from vllm import envs
from vllm.logger import init_logger, log_once

logger = init_logger(__name__)

# The same numbers as enum DType in csrc/cpu/types.hpp.
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

# From this many rows torch's oneDNN is faster at bf16 where the CPU multiplies bf16 itself:
# it reaches 420-490 GFLOP/s at 32 rows on two Zen 5 cores, fp32 multiply-add at most 512.
_ONEDNN_MIN_ROWS = 24


@functools.cache
def _extension() -> ModuleType | None:
    """The extension, or None. torch is imported first, so that both share torch's OpenMP."""
    try:
        library = importlib.import_module("vllm._C")
    except ImportError as error:
        log_once(
            logger,
            logging.WARNING,
            f"Compiled kernels are not available ({error}); running on the PyTorch definitions, "
            "which are slower. Reinstall with a C++17 compiler to build them.",
        )
        return None
    if envs.VLLM_CPU_ISA is not None:
        library.select_isa(envs.VLLM_CPU_ISA)
    return library


def is_available() -> bool:
    """Whether the compiled kernels can run here."""
    return _extension() is not None


def isa() -> str:
    """The instruction set in use, or "none" without the extension."""
    extension = _extension()
    return "none" if extension is None else str(extension.isa())


def supported_isas() -> list[str]:
    """Instruction sets that this CPU runs, best first; empty without the extension."""
    extension = _extension()
    return [] if extension is None else list(extension.supported_isas())


def _lib() -> ModuleType:
    extension = _extension()
    assert extension is not None, "a kernel was launched without the extension"
    return extension


@functools.cache
def _multiplies_bf16() -> bool:
    return isa() == "avx512bf16"


def linear_is_faster(num_rows: int, dtype: torch.dtype) -> bool:
    """Whether the own product is taken for this many rows, rather than torch's.

    Yes, but for bf16 from `_ONEDNN_MIN_ROWS` rows on a CPU with bf16 products, unless
    VLLM_CPU_ISA forces another instruction set. Without those products torch converts bf16
    slowly (one Zen 3 core: 6-9 GFLOP/s at any number of rows, own 30-63). For fp32 and 1,024
    rows torch is some 15 % faster (57-60 GFLOP/s, own 49-53); the own product is taken all the
    same, since it gives a row the same bits in any batch.
    """
    return not (dtype == torch.bfloat16 and num_rows >= _ONEDNN_MIN_ROWS and _multiplies_bf16())


def takes_rows(x: Tensor, weight: Tensor | None = None) -> bool:
    """Whether a kernel can read x as rows that lie apart evenly, and weight as one row."""
    if x.device.type != "cpu" or x.dtype not in _DTYPES or x.dim() == 0 or x.stride(-1) != 1:
        return False
    if x.dim() > 2 and not x.is_contiguous():
        return False
    return weight is None or (weight.dtype == x.dtype and weight.stride(-1) == 1)


def _rows(x: Tensor) -> tuple[int, int, int]:
    """(number of rows, width, distance between rows) of [..., width]."""
    width = x.shape[-1]
    num_rows = x.numel() // width if width else 0
    stride = x.stride(-2) if x.dim() == 2 else width
    return num_rows, width, stride


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias. x: [..., K]; weight: [N, K]; returns [..., N]."""
    num_rows, k, stride = _rows(x)
    n = weight.shape[0]
    if weight.shape != (n, k) or (bias is not None and bias.shape != (n,)):
        raise ValueError(f"linear: x {tuple(x.shape)} does not fit weight {tuple(weight.shape)}")
    out = torch.empty((*x.shape[:-1], n), dtype=x.dtype)
    if out.numel():
        _lib().linear(
            _DTYPES[x.dtype], out.data_ptr(), x.data_ptr(), stride, weight.data_ptr(),
            0 if bias is None else bias.data_ptr(), num_rows, n, k, torch.get_num_threads(),
        )  # fmt: skip
    return out


def _check_width(x: Tensor, weight: Tensor) -> None:
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: weight {tuple(weight.shape)} for x {tuple(x.shape)}")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm of each row; see `vllm.ir.ops.rms_norm`."""
    _check_width(x, weight)
    num_rows, width, stride = _rows(x)
    out = torch.empty(x.shape, dtype=x.dtype)
    _lib().rms_norm(
        _DTYPES[x.dtype], out.data_ptr(), x.data_ptr(), stride, weight.data_ptr(), eps,
        num_rows, width, torch.get_num_threads(),
    )  # fmt: skip
    return out


def fused_add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Add and norm in place; see `vllm.ir.ops.fused_add_rms_norm_`."""
    _check_width(x, weight)
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(f"residual {tuple(residual.shape)} for x {tuple(x.shape)}")
    num_rows, width, stride = _rows(x)
    _lib().fused_add_rms_norm(
        _DTYPES[x.dtype], x.data_ptr(), stride, residual.data_ptr(), _rows(residual)[2],
        weight.data_ptr(), eps, num_rows, width, torch.get_num_threads(),
    )  # fmt: skip


def silu_and_mul(x: Tensor) -> Tensor:
    """Gated activation; see `vllm.ir.ops.silu_and_mul`."""
    num_rows, width, stride = _rows(x)
    out = torch.empty((*x.shape[:-1], width // 2), dtype=x.dtype)
    _lib().silu_and_mul(
        _DTYPES[x.dtype], out.data_ptr(), x.data_ptr(), stride, num_rows, width // 2,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def rotary_embedding_(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox: bool,
) -> None:
    """Rotate in place; see `vllm.ir.ops.rotary_embedding_`."""
    rotary_dim = cos_sin_cache.shape[-1]
    if positions.dtype != torch.int64 or cos_sin_cache.dtype != torch.float32:
        raise ValueError("rotary_embedding_: positions are int64, the cache is fp32")
    if not (positions.is_contiguous() and cos_sin_cache.is_contiguous()):
        raise ValueError("rotary_embedding_: positions and cache are contiguous")
    for x in (query, key):
        num_tokens, width, stride = _rows(x)
        if num_tokens != positions.numel() or width % head_size or rotary_dim > head_size:
            raise ValueError(
                f"rotary_embedding_: {tuple(x.shape)} for {positions.numel()} positions, heads "
                f"of {head_size}, {rotary_dim} of them rotated"
            )
        _lib().rotary_embedding(
            _DTYPES[x.dtype], positions.data_ptr(), x.data_ptr(), stride,
            cos_sin_cache.data_ptr(), num_tokens, width // head_size, head_size, rotary_dim,
            is_neox, torch.get_num_threads(),
        )  # fmt: skip


def probe_read(data: Tensor, num_threads: int) -> float:
    """Read a contiguous fp32 tensor once; its sum. For benchmarks."""
    if data.dtype != torch.float32 or not data.is_contiguous():
        raise ValueError("probe_read: data is contiguous fp32")
    return float(_lib().probe_read(data.data_ptr(), data.numel(), num_threads))


def probe_multiply_add(num_iterations: int, num_threads: int) -> float:
    """Run a loop of fp32 multiply-adds in each thread; the operations done. For benchmarks."""
    return float(_lib().probe_multiply_add(num_iterations, num_threads))
