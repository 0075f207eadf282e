# SPDX-License-Identifier: Apache-2.0
"""From what the user named to files on this machine: a folder, a GGUF file or a hub id.

A name that looks like a path is never asked of the network. Pickled weights are never read.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vllm.exceptions import ConfigError
from vllm.transformers_utils.gguf_utils import is_gguf

WeightFormat = Literal["safetensors", "gguf", "dummy"]

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
CONFIG_PATTERNS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# A second copy of the weights in the makers' own layout, beside the Transformers one.
_OTHER_LAYOUT = "consolidated"
_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_HUB_FILE = re.compile(r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)/(?P<file>[\w./-]+\.gguf)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model's files on this machine.

    Attributes:
        path: the folder, or the GGUF file.
        format: how its weights are stored; "dummy" if they are not to be read.
        files: the files that hold weights, in the order to read them.
        index: the index of a sharded safetensors checkpoint.
    """

    path: Path
    format: WeightFormat
    files: tuple[Path, ...]
    index: Path | None = None


def resolve_model(
    model: str,
    revision: str | None = None,
    load_format: str = "auto",
    *,
    download_dir: str | None = None,
) -> ResolvedModel:
    """Find a model's files, fetching them from the hub if need be.

    Args:
        model: a folder, a .gguf file, a hub id ("org/name"), or a GGUF file of one
            ("org/name/file.gguf").
        revision: branch, tag or commit of a hub id.
        load_format: "auto", "safetensors", "gguf" or "dummy".
        download_dir: folder for files from the hub; None is the hub's own cache.

    Raises:
        ConfigError: there is no such model, or nothing in it that can be read.
    """
    path = local_path(model)
    if path is None:
        path = fetch(model, revision, load_format, download_dir=download_dir)
    return find_weights(path, load_format)


def local_path(name: str) -> Path | None:
    """The existing path `name` stands for; None if it is the name of a hub repository.

    Raises:
        ConfigError: it looks like a path, but nothing is there.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path.resolve()
    looks_local = name.startswith(("/", ".", "~", os.sep)) or _HUB_ID.fullmatch(name) is None
    if (looks_local or is_gguf(name)) and not (_HUB_FILE.fullmatch(name) and name[0] not in "./~"):
        raise ConfigError(
            f"model {name!r}: no such file or folder, and not a hub id; pass a folder, a .gguf "
            "file or a hub id such as org/name"
        )
    return None


def fetch(
    model: str, revision: str | None, load_format: str, *, download_dir: str | None = None
) -> Path:
    """Fetch a hub repository, or one GGUF file of it; nothing is fetched that is cached.

    Raises:
        ConfigError: it does not exist, may not be read, or the hub cannot be reached.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    options: dict[str, Any] = {"revision": revision, "cache_dir": download_dir}
    try:
        if match := _HUB_FILE.fullmatch(model):
            return Path(huggingface_hub.hf_hub_download(match["repo"], match["file"], **options))
        patterns = list(CONFIG_PATTERNS)
        if load_format in ("auto", "safetensors"):
            patterns.append("*.safetensors")
        folder = huggingface_hub.snapshot_download(
            model,
            allow_patterns=patterns,
            # Weights live at the top; below it are copies in other layouts.
            ignore_patterns=[f"{_OTHER_LAYOUT}*", "*/*"],
            **options,
        )
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"model {model!r} is neither a local path nor in the local cache, and the hub cannot "
            "be reached (no network, or HF_HUB_OFFLINE is set); pass a local folder or .gguf file"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        summary = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"model {model!r} cannot be fetched from the hub: {summary}") from error
    return Path(folder)


def find_weights(path: Path, load_format: str = "auto") -> ResolvedModel:
    """The files of a local model that hold its weights.

    Raises:
        ConfigError: nothing there can be read, or it is ambiguous what to read.
    """
    if load_format == "dummy":
        return ResolvedModel(path, "dummy", ())
    if path.is_file():
        return _single_file(path, load_format)
    if load_format in ("auto", "safetensors"):
        found = _find_safetensors(path)
        if found is not None:
            return found
    if load_format in ("auto", "gguf"):
        files = sorted(p for p in path.iterdir() if is_gguf(p))
        if len(files) == 1:
            return ResolvedModel(files[0], "gguf", (files[0],))
        if files:
            raise ConfigError(
                f"{path.name} holds several GGUF files; name the one to serve: "
                + ", ".join(p.name for p in files)
            )
    raise ConfigError(_nothing_found(path, load_format))


def _single_file(path: Path, load_format: str) -> ResolvedModel:
    if not is_gguf(path):
        raise ConfigError(
            f"{path.name} is a file, but not a .gguf file; pass a folder with config.json and "
            f"safetensors files, or a .gguf file.{_pickle_note([path])}"
        )
    if load_format == "safetensors":
        raise ConfigError(f"{path.name} is a GGUF file, but load_format={load_format!r} was asked")
    return ResolvedModel(path, "gguf", (path,))


def _find_safetensors(folder: Path) -> ResolvedModel | None:
    index, single = folder / INDEX_NAME, folder / SINGLE_NAME
    if index.is_file():
        files = tuple(folder / name for name in _index_files(index))
        if single.is_file() and single not in files:
            raise ConfigError(
                f"{folder.name} holds both {SINGLE_NAME} and {INDEX_NAME}; remove the one that is "
                "not this model"
            )
        return ResolvedModel(folder, "safetensors", files, index)
    found = sorted(folder.glob("*.safetensors"))
    files = tuple(p for p in found if not p.name.startswith(_OTHER_LAYOUT)) or tuple(found)
    return ResolvedModel(folder, "safetensors", files) if files else None


def _index_files(index: Path) -> list[str]:
    """Names of the files an index speaks of; what each holds is the reader's to check."""
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        files = {None}
    if not files or not all(isinstance(file, str) for file in files):
        raise ConfigError(f"{index.name} is damaged, fetch it again: it holds no map of files")
    return sorted(files)


def _nothing_found(folder: Path, load_format: str) -> str:
    wanted = {"safetensors": "*.safetensors", "gguf": "*.gguf"}.get(
        load_format, "*.safetensors or *.gguf"
    )
    return f"{folder.name} holds no {wanted} file.{_pickle_note(list(folder.iterdir()))}"


def _pickle_note(paths: list[Path]) -> str:
    pickles = sorted(p.name for p in paths if p.suffix in _PICKLE_SUFFIXES)
    if not pickles:
        return ""
    return (
        f" {pickles[0]} is in pickle form, which can run code when it is read and is refused; "
        "convert it to safetensors"
    )
