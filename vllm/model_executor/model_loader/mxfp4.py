# SPDX-License-Identifier: Apache-2.0
"""MXFP4 expert weights, unpacked while they are read.

Owns the format and which checkpoints are taken to be in it. Which tensors are packed is read from
their names; the result has the name and layout of the parameter it fills. Format: OCP Microscaling
Formats (MX) 1.0: 32 e2m1 values share one e8m0 scale.

    NAME_blocks  uint8 [experts, out, in / 32, 16]   two values a byte, the low half first
    NAME_scales  uint8 [experts, out, in / 32]       2 ** (scale - 127); 255 is NaN
    NAME         [experts, in, out]
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.model_loader.weight_source import Weight, WeightSource

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MXFP4 = "mxfp4"
# Parameters of other models may hold experts as [experts, out, in]; of equal sizes it would not
# show.
_MODEL_TYPES = ("gpt_oss",)
_KNOWN_FIELDS = frozenset({"quant_method", "modules_to_not_convert", "dequantize"})
_HALF = re.compile(r"(?P<name>.+\.mlp\.experts\.(?:gate_up|down)_proj)_(?P<half>blocks|scales)")

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # then the same, negative
_GROUP_SIZE = 32  # values
_GROUP_BYTES = _GROUP_SIZE // 2
_BIAS = 127
_NAN = 255
# Transposing a piece that fits the second-level cache: four times as fast as a whole expert.
_PIECE_VALUES = 1 << 19


def is_mxfp4(config: "PretrainedConfig") -> bool:
    """Whether a checkpoint's experts are packed in a way that is unpacked here.

    Args:
        config: the checkpoint's whole configuration.
    """
    options = _options(getattr(config, "quantization_config", None))
    return options.get("quant_method") == MXFP4 and config.model_type in _MODEL_TYPES


def refuse_other_quantization(config: "PretrainedConfig") -> None:
    """Refuse a checkpoint that needs more than `unpack_mxfp4` to be one of plain weights.

    Raises:
        ConfigError: the method is another one, or the model one whose experts lie otherwise, or
            the configuration has fields of unknown meaning.
    """
    for field in ("quantization_config", "compression_config"):
        value = getattr(config, field, None)
        if value is None:
            continue
        method = _options(value).get("quant_method")
        if field != "quantization_config" or not is_mxfp4(config):
            raise ConfigError(
                f"{field}: quantization method {method!r} of a {config.model_type} model is not "
                f"supported; use a checkpoint with fp32, fp16 or bf16 weights (method {MXFP4!r} is "
                f"taken for the experts of {', '.join(_MODEL_TYPES)})"
            )
        unknown = sorted(k for k, v in _options(value).items() if not _is_known(k, v))
        if unknown:
            raise ConfigError(
                f"{field}: {', '.join(unknown)} is not known with quantization method {MXFP4!r}, "
                "and leaving it out could change the model's answers; known are "
                f"{', '.join(sorted(_KNOWN_FIELDS))}"
            )


def _is_known(field: str, value: Any) -> bool:
    return field in _KNOWN_FIELDS or value is None


def _options(quantization: Any) -> Mapping[str, Any]:
    return quantization if isinstance(quantization, Mapping) else {}


def unpack_mxfp4(source: WeightSource, dtype: torch.dtype) -> Iterator[Weight]:
    """The same weights, each packed pair as one tensor under its parameter's name.

    The half that comes first is kept (as the view of a mapped file that it is) until the other
    one comes, from whichever file. No unpacked tensor is kept.

    Args:
        source: the checkpoint's tensors.
        dtype: of the unpacked ones; the others stay as they are.

    Raises:
        ModelLoadError: a half is missing, or not as the format says; names it and its file.
    """
    waiting: dict[str, Weight] = {}
    for weight in source:
        match = _HALF.fullmatch(weight.name)
        if match is None:
            yield weight
            continue
        name = match["name"]
        first = waiting.pop(name, None)
        if first is None:
            waiting[name] = weight
        elif first.name == weight.name:
            raise ModelLoadError(
                f"{weight.name} is in the checkpoint twice: in {first.file} and in {weight.file}"
            )
        else:
            pair = (first, weight) if match["half"] == "scales" else (weight, first)
            yield _unpack(name, *pair, dtype)
    for name, weight in waiting.items():
        lacks = f"{name}_scales" if weight.name.endswith("_blocks") else f"{name}_blocks"
        raise ModelLoadError(f"{_described(weight)}: the checkpoint lacks {lacks}, its other half")


def _unpack(name: str, blocks: Weight, scales: Weight, dtype: torch.dtype) -> Weight:
    _check(blocks, scales)
    values = dequantize(blocks.tensor, scales.tensor, dtype)
    if _E2M1[-1] * 2.0 ** (int(scales.tensor.max()) - _BIAS) > torch.finfo(dtype).max:
        _refuse_infinite(scales, values)
    files = dict.fromkeys((blocks.file, scales.file))
    return Weight(name, values, ", ".join(files))


def _check(blocks: Weight, scales: Weight) -> None:
    for half, layout in (
        (blocks, "[experts, out, groups, 16]"),
        (scales, "[experts, out, groups]"),
    ):
        if half.tensor.dtype != torch.uint8:
            raise ModelLoadError(
                f"{_described(half)}: its dtype is {half.tensor.dtype}, expected torch.uint8"
            )
        if half.tensor.dim() != layout.count(",") + 1 or half.tensor.numel() == 0:
            raise ModelLoadError(f"{_described(half)}: expected shape {layout}, none of them 0")
    if blocks.tensor.shape[-1] != _GROUP_BYTES:
        raise ModelLoadError(
            f"{_described(blocks)}: a group is {blocks.tensor.shape[-1]} bytes, expected "
            f"{_GROUP_BYTES}, which hold {_GROUP_SIZE} values"
        )
    if blocks.tensor.shape[:-1] != scales.tensor.shape:
        raise ModelLoadError(
            f"{_described(scales)}: expected shape {list(blocks.tensor.shape[:-1])}, one scale for "
            f"each group of {_described(blocks)}"
        )
    is_nan = scales.tensor == _NAN
    if is_nan.any():
        raise ModelLoadError(
            f"{_described(scales)}: {int(is_nan.sum())} scales are {_NAN}, which is not a number, "
            f"the first at {is_nan.nonzero()[0].tolist()}; expected 0 to {_NAN - 1}"
        )


def _refuse_infinite(scales: Weight, values: Tensor) -> None:
    """Refuse values beyond the dtype, which were rounded to infinity."""
    is_infinite = values.isinf()
    if is_infinite.any():
        raise ModelLoadError(
            f"{_described(scales)}: {int(is_infinite.sum())} unpacked values are beyond the range "
            f'of {values.dtype}; load the model with dtype="bfloat16" or "float32" if it is not, '
            "or fetch the file again"
        )


def _described(weight: Weight) -> str:
    return f"{weight.name} (shape {list(weight.tensor.shape)}, from {weight.file})"


def dequantize(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Unpack the weights of stacked experts and put their input dimension first.

    Args:
        blocks: [experts, out, groups, 16], uint8, on the CPU, not empty.
        scales: [experts, out, groups], uint8.
        dtype: of the result. fp32 and bf16 hold every value within their range exactly.

    Returns:
        [experts, groups * 32, out].
    """
    num_experts, num_rows, num_groups = scales.shape
    # fp16 holds few of the scales, though it may hold the products.
    inner = dtype if dtype in (torch.float32, torch.bfloat16) else torch.float32
    out = torch.empty(num_experts, num_groups * _GROUP_SIZE, num_rows, dtype=dtype)
    step = min(num_rows, max(1, _PIECE_VALUES // out.shape[1]))
    pairs = _LookUp(_pairs(inner), step * num_groups * _GROUP_BYTES)
    powers = _LookUp(_powers(inner), step * num_groups)
    for expert in range(num_experts):
        for start in range(0, num_rows, step):
            rows = slice(start, start + step)
            values = pairs(blocks[expert, rows]).view(inner).view(-1, _GROUP_SIZE)
            values.mul_(powers(scales[expert, rows]).unsqueeze(1))
            out[expert, :, rows].copy_(values.view(-1, out.shape[1]).t())
    return out


class _LookUp:
    """A table of 256 entries over bytes, into memory of its own.

    Fresh memory for each piece cost as much as the arithmetic.
    """

    def __init__(self, table: Tensor, max_bytes: int) -> None:
        self._table = table
        self._index = torch.empty(max_bytes, dtype=torch.int32)
        self._entries = torch.empty(max_bytes, dtype=table.dtype)

    def __call__(self, data: Tensor) -> Tensor:
        """uint8 of any shape -> the entry of each byte, flat; the next call overwrites them."""
        size = data.numel()
        index = self._index[:size]
        index.view(data.shape).copy_(data)
        return torch.index_select(self._table, 0, index, out=self._entries[:size])


def _pairs(dtype: torch.dtype) -> Tensor:
    """[256], the two values of each byte side by side: one look-up gives both."""
    values = torch.tensor([*_E2M1, *(-v for v in _E2M1)], dtype=dtype)
    byte = torch.arange(256)
    pairs = torch.stack((values[byte & 0x0F], values[byte >> 4]), dim=1)
    return pairs.view(torch.int32 if dtype.itemsize == 2 else torch.int64).squeeze(1)


def _powers(dtype: torch.dtype) -> Tensor:
    """[256], what each scale multiplies by."""
    return torch.tensor([2.0 ** (scale - _BIAS) for scale in range(256)], dtype=torch.float64).to(
        dtype
    )
