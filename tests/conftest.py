# SPDX-License-Identifier: Apache-2.0
"""Fixtures and rules for all tests: no network, two threads, tiny models made once a session.

What a machine may lack (compiled kernels, the default model, an accelerator) skips the tests that
need it. With CI=true only the accelerator may be lacking: the others then fail their tests.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

# Set before any import of the libraries that read them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Idle OpenMP threads sleep: tests are tiny, and spinning slows all else on a shared machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("VLLM_CACHE_ROOT", tempfile.mkdtemp(prefix="vllm-test-cache-"))

import pytest
import torch

from tests.utils import make_tiny_model
from vllm import _custom_ops as custom_ops
from vllm.transformers_utils.default_model import DefaultModelError, ensure_default_model

torch.set_num_threads(min(2, os.cpu_count() or 1))

TinyModel = Callable[..., Path]


def missing(what: str) -> NoReturn:
    """Skip the test because of what this machine lacks; in CI, which must not lack it, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}; with CI=true this is a failure", pytrace=False)
    pytest.skip(what)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of the compiled kernels need them."""
    if item.get_closest_marker("extension") and not custom_ops.is_available():
        missing("the compiled kernels (vllm._C) are not built")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests for hardware that is not here."""
    has_gpu = torch.cuda.is_available()
    has_rocm = has_gpu and torch.version.hip is not None
    for item in items:
        if item.get_closest_marker("rocm") and not has_rocm:
            item.add_marker(pytest.mark.skip(reason="needs a ROCm GPU"))
        elif item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session")
def default_model() -> str:
    """Path of the default model's file, fetched if need be."""
    try:
        return str(ensure_default_model())
    except DefaultModelError as error:
        missing(f"the default model cannot be had: {error}")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """`make_tiny_model` without a path: each distinct model is written once a session."""
    made: dict[str, Path] = {}

    def make(arch: str = "llama", **options: Any) -> Path:
        key = repr((arch, sorted(options.items())))
        if key not in made:
            made[key] = make_tiny_model(tmp_path_factory.mktemp(arch), arch, **options)
        return made[key]

    return make
