# SPDX-License-Identifier: Apache-2.0
"""Reader of GGUF files: metadata and where each tensor lies. No pickle, no code, no trust.

Every count, length and offset is checked against the file before it is followed, so a damaged or
hostile file gives a `ModelLoadError` and nothing else. Knows no architectures.

Our own reader, because the `gguf` package's takes seconds to walk a vocabulary (one array object
per string) and does not check counts; its tables of types are used.

Layout (version 2 and 3, little-endian):

    "GGUF" | version u32 | num_tensors u64 | num_values u64
    num_values  x  key str | type u32 | value           (str = length u64, bytes)
    num_tensors x  name str | num_dims u32 | dims u64[] | type u32 | offset u64
    padding to `general.alignment`, then the data; offsets count from here
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from vllm.exceptions import ModelLoadError

GGUF_MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
SUPPORTED_TYPES = (
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q5_0,
    GGMLQuantizationType.Q5_1,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q5_K,
    GGMLQuantizationType.Q6_K,
)
MAX_DIMS = 4
MAX_KEY_BYTES = 65535
DEFAULT_ALIGNMENT = 32

_SCALARS: Mapping[int, np.dtype[Any]] = {
    int(value_type): np.dtype(code).newbyteorder("<")
    for value_type, code in (
        (GGUFValueType.UINT8, "u1"),
        (GGUFValueType.INT8, "i1"),
        (GGUFValueType.UINT16, "u2"),
        (GGUFValueType.INT16, "i2"),
        (GGUFValueType.UINT32, "u4"),
        (GGUFValueType.INT32, "i4"),
        (GGUFValueType.FLOAT32, "f4"),
        (GGUFValueType.BOOL, "?"),
        (GGUFValueType.UINT64, "u8"),
        (GGUFValueType.INT64, "i8"),
        (GGUFValueType.FLOAT64, "f8"),
    )
}
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor's place in the file.

    Attributes:
        name: as in the file.
        shape: slowest dimension first, as torch has it (the file has it the other way round).
        tensor_type: how its numbers are stored.
        offset: of its first byte, from the start of the file.
        row_bytes: bytes of one row, that is of the last dimension.
    """

    name: str
    shape: tuple[int, ...]
    tensor_type: GGMLQuantizationType
    offset: int
    row_bytes: int

    @property
    def num_rows(self) -> int:
        """Product of all dimensions but the last."""
        return math.prod(self.shape[:-1])

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return self.num_rows * self.row_bytes


class _Cursor:
    """A position in the file's bytes; refuses to pass the end."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data, self.name = data, name
        self.pos, self.size = 0, len(data)

    def fail(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.name} is not a valid GGUF file: {what}")

    def skip(self, num_bytes: int, what: str) -> int:
        """Move on; returns where the skipped bytes start."""
        start = self.pos
        if num_bytes > self.size - start:
            raise self.fail(
                f"{what} at byte {start} needs {num_bytes} bytes, {self.size - start} are left"
            )
        self.pos = start + num_bytes
        return start

    def uint(self, num_bytes: int, what: str) -> int:
        start = self.skip(num_bytes, what)
        return int.from_bytes(self.data[start : self.pos], "little")

    def string(self, what: str, max_bytes: int | None = None) -> str:
        length = self.uint(8, what)
        if max_bytes is not None and length > max_bytes:
            raise self.fail(f"{what} is {length} bytes long; at most {max_bytes} are allowed")
        start = self.skip(length, what)
        return self.decode(self.data[start : self.pos], what)

    def decode(self, text: bytes, what: str) -> str:
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings; a loop without calls, as vocabularies are long."""
        if count > (self.size - self.pos) // _U64.size:
            raise self.fail(f"{what} claims {count} strings, more than the file could hold")
        data, pos, last = self.data, self.pos, self.size - _U64.size
        texts: list[str] = []
        try:
            for _ in range(count):
                start = pos + 8
                end = start + _U64.unpack_from(data, pos)[0] if pos <= last else self.size + 1
                if end > self.size:
                    raise self.fail(f"{what} ends inside its string {len(texts)}")
                texts.append(str(data[start:end], "utf-8"))
                pos = end
        except UnicodeDecodeError:
            raise self.fail(f"{what} holds a string that is not UTF-8") from None
        self.pos = pos
        return texts

    def value(self, what: str) -> Any:
        value_type = self.uint(4, what)
        if value_type == GGUFValueType.STRING:
            return self.string(what)
        if value_type != GGUFValueType.ARRAY:
            return self._numbers(value_type, 1, what)[0]
        item_type = self.uint(4, what)
        count = self.uint(8, what)
        if item_type == GGUFValueType.STRING:
            return self.strings(count, what)
        return self._numbers(item_type, count, what)

    def _numbers(self, value_type: int, count: int, what: str) -> list[Any]:
        dtype = _SCALARS.get(value_type)
        if dtype is None:
            raise self.fail(f"{what} has the type {value_type}, which is not supported")
        start = self.skip(count * dtype.itemsize, what)
        if dtype.kind == "b":
            return [byte != 0 for byte in self.data[start : self.pos]]
        values: list[Any] = np.frombuffer(self.data, dtype, count, start).tolist()
        return values


class GGUFFile:
    """One GGUF file: `metadata` by key, `tensors` by name, and their bytes on demand."""

    def __init__(self, path: Path) -> None:
        """Read and check the header.

        Raises:
            ModelLoadError: the file cannot be read, is damaged, or stores a tensor in a type
                that is not supported.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path.name} cannot be read: {error}") from error
        cursor = _Cursor(data, path.name)
        num_tensors, num_values = self._read_start(cursor)
        self.metadata = self._read_metadata(cursor, num_values)
        self.tensors = self._read_tensors(cursor, num_tensors)
        self._data: np.ndarray | None = None

    @property
    def architecture(self) -> str:
        """The value of general.architecture.

        Raises:
            ModelLoadError: it is absent or no text.
        """
        return str(self.get("general.architecture", str))

    def get(self, key: str, kind: type, default: Any = ...) -> Any:
        """Metadata value of a given type (an int passes as float).

        Raises:
            ModelLoadError: it is absent and has no default, or is of another type.
        """
        value = self.metadata.get(key, default)
        if value is ...:
            raise ModelLoadError(f"{self.path.name} holds no {key}")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind and value is not default:
            raise ModelLoadError(f"{self.path.name}: {key}={value!r:.80} is no {kind.__name__}")
        return value

    def rows(self, tensor: GGUFTensor) -> np.ndarray:
        """The tensor's bytes, uint8 [num_rows, row_bytes]: a mapping, private if written to."""
        if self._data is None:
            # Copy-on-write, because torch warns of arrays that cannot be written.
            self._data = np.memmap(self.path, mode="c")
        end = tensor.offset + tensor.num_bytes
        if end > len(self._data):
            raise ModelLoadError(f"{self.path.name} became shorter while it was read")
        return self._data[tensor.offset : end].reshape(tensor.num_rows, tensor.row_bytes)

    def _read_start(self, cursor: _Cursor) -> tuple[int, int]:
        start = cursor.skip(4, "the magic number")
        magic = cursor.data[start : start + 4]
        if magic != GGUF_MAGIC:
            raise cursor.fail(f"it starts with {magic!r} instead of {GGUF_MAGIC!r}")
        version = cursor.uint(4, "the version")
        if version not in SUPPORTED_VERSIONS:
            is_big_endian = version & 0xFFFF == 0 and version != 0
            raise cursor.fail(
                "it is big-endian; only little-endian files are supported"
                if is_big_endian
                else f"version {version} is not supported; versions 2 and 3 are"
            )
        return cursor.uint(8, "the number of tensors"), cursor.uint(8, "the number of values")

    def _read_metadata(self, cursor: _Cursor, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for i in range(count):
            key = cursor.string(f"metadata key {i}", MAX_KEY_BYTES)
            if key in metadata:
                raise cursor.fail(f"the key {key} is there twice")
            metadata[key] = cursor.value(f"metadata value {key}")
        return metadata

    def _read_tensors(self, cursor: _Cursor, count: int) -> dict[str, GGUFTensor]:
        infos = [self._read_tensor_info(cursor, i) for i in range(count)]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise cursor.fail(f"general.alignment={alignment!r} is not a power of two")
        start = -(-cursor.pos // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, offset in infos:
            if name in tensors:
                raise cursor.fail(f"the tensor {name} is there twice")
            if offset % alignment:
                raise cursor.fail(f"the tensor {name} starts at {offset}, not on {alignment} bytes")
            tensor = self._place(cursor, name, shape, type_id, start + offset)
            if tensor.offset + tensor.num_bytes > cursor.size:
                raise cursor.fail(
                    f"the tensor {name} (shape {list(shape)}, {tensor.tensor_type.name}) ends at "
                    f"byte {tensor.offset + tensor.num_bytes}, the file at {cursor.size}; it is "
                    "incomplete, fetch it again"
                )
            tensors[name] = tensor
        return tensors

    def _read_tensor_info(
        self, cursor: _Cursor, index: int
    ) -> tuple[str, tuple[int, ...], int, int]:
        name = cursor.string(f"the name of tensor {index}", MAX_KEY_BYTES)
        num_dims = cursor.uint(4, f"tensor {name}")
        if not 1 <= num_dims <= MAX_DIMS:
            raise cursor.fail(
                f"the tensor {name} has {num_dims} dimensions; 1 to {MAX_DIMS} may be"
            )
        dims = tuple(cursor.uint(8, f"tensor {name}") for _ in range(num_dims))
        if 0 in dims:
            raise cursor.fail(f"the tensor {name} is empty")
        type_id = cursor.uint(4, f"tensor {name}")
        return name, dims[::-1], type_id, cursor.uint(8, f"tensor {name}")

    def _place(
        self, cursor: _Cursor, name: str, shape: tuple[int, ...], type_id: int, offset: int
    ) -> GGUFTensor:
        known = {int(t): t for t in GGMLQuantizationType}
        tensor_type = known.get(type_id)
        if tensor_type is None or tensor_type not in SUPPORTED_TYPES:
            came = tensor_type.name if tensor_type is not None else f"number {type_id}"
            raise ModelLoadError(
                f"{cursor.name}: the tensor {name} is stored as {came}, which is not supported; "
                f"supported are {', '.join(t.name for t in SUPPORTED_TYPES)}"
            )
        block_size, block_bytes = GGML_QUANT_SIZES[tensor_type]
        if shape[-1] % block_size:
            raise cursor.fail(
                f"the rows of {name} have {shape[-1]} entries, no multiple of the {block_size} "
                f"that a block of {tensor_type.name} holds"
            )
        return GGUFTensor(name, shape, tensor_type, offset, shape[-1] // block_size * block_bytes)


def is_gguf(path: str | Path) -> bool:
    """Whether the name says GGUF."""
    return str(path).lower().endswith(".gguf")
