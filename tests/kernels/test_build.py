# SPDX-License-Identifier: Apache-2.0
"""Building the extension: a machine without compiler or CMake still gets an installed engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="77")
ROOT = Path(__file__).parents[2]


def build(tmp_path: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """Run setup.py's build step, results below tmp_path, seeing only the programs in `path`."""
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path / "lib")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k not in ("CC", "CXX")} | {"PATH": str(path)},
    )


def assert_goes_on_without_kernels(result: subprocess.CompletedProcess[str], tmp_path: Path):
    assert result.returncode == 0, result.stderr
    assert "the kernels were not built" in result.stderr
    assert "Install a C++17 compiler" in result.stderr
    assert not list(tmp_path.rglob("_C*.so"))


def test_without_cmake_the_build_says_so_and_succeeds(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    assert_goes_on_without_kernels(build(tmp_path, programs), tmp_path)


def test_a_failing_configure_says_so_and_succeeds(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    cmake = programs / "cmake"  # what CMake does where no compiler is: exit with 1
    cmake.write_text("#!/bin/sh\nexit 1\n")
    cmake.chmod(0o755)
    assert_goes_on_without_kernels(build(tmp_path, programs), tmp_path)
