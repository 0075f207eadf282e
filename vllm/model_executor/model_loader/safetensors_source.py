# SPDX-License-Identifier: Apache-2.0
"""Weights from safetensors files: one tensor at a time, from a mapping of the file."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vllm.exceptions import ModelLoadError
from vllm.model_executor.model_loader.weight_source import Weight


def safetensors_weights_iterator(
    files: Sequence[Path], index: Path | None = None
) -> Iterator[Weight]:
    """All tensors of some files, in the order of files and names.

    The headers of all files are read and compared before the first tensor, so that a missing,
    truncated or contradictory file is found before anything is written. The library itself checks
    that the tensors fill each file exactly.

    Args:
        files: what to read.
        index: the index of a sharded checkpoint; then it must name just these files' tensors.

    Raises:
        ModelLoadError: a file is absent or damaged, a tensor is in two files, or the index and
            the files differ; names the file.
    """
    homes: dict[str, str] = {}
    for path in files:
        for name in _names(path):
            if name in homes:
                raise ModelLoadError(
                    f"{name} is in the checkpoint twice: in {homes[name]} and in {path.name}"
                )
            homes[name] = path.name
    if index is not None:
        _compare(index, read_index(index), homes)
    for path in files:
        with _open(path) as handle:
            for name in handle.keys():  # noqa: SIM118 - not a dict
                yield Weight(name, _tensor(handle, name, path), path.name)


def read_index(index: Path) -> dict[str, str]:
    """The index's map from tensor to file, files being plain names.

    Raises:
        ModelLoadError: the index is damaged or points out of its folder.
    """
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{index.name} cannot be read: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index.name} holds no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise ModelLoadError(f"{index.name}: {name} is in {file!r}, which is no file's name")
        if not file.endswith(".safetensors"):
            raise ModelLoadError(
                f"{index.name}: {name} is in {file!r}, which is no safetensors file"
            )
    return weight_map


def _compare(index: Path, weight_map: dict[str, str], homes: dict[str, str]) -> None:
    for name, file in weight_map.items():
        if homes.get(name) != file:
            raise ModelLoadError(f"{index.name}: {name} should be in {file}, but is not")
    for name, file in homes.items():
        if name not in weight_map:
            raise ModelLoadError(f"{file}: {name} is not in {index.name}")


def _names(path: Path) -> list[str]:
    with _open(path) as handle:
        return list(handle.keys())


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ModelLoadError(f"{path.name} is missing; the checkpoint is incomplete")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"{path.name} is damaged or incomplete, fetch it again: {error}"
        ) from error


def _tensor(handle: Any, name: str, path: Path) -> Any:
    try:
        return handle.get_tensor(name)
    except (SafetensorError, RuntimeError, KeyError, AttributeError) as error:
        raise ModelLoadError(f"{path.name}: {name} cannot be read: {error}") from error
