# SPDX-License-Identifier: Apache-2.0
"""Builds the kernels with CMake. Without a compiler the install succeeds all the same: the
engine then runs on the PyTorch definitions of its ops, and says so once at start-up."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent


class CMakeBuild(build_ext):
    """Configure, build, and copy `_C` to where setuptools expects it."""

    def run(self) -> None:
        try:
            for extension in self.extensions:
                self.build_extension(extension)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.stderr.write(
                f"\nvllm: the kernels were not built ({error}). Install a C++17 compiler with "
                "OpenMP and install again for full speed.\n\n"
            )

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        if self.inplace or self.editable_mode:
            target = ROOT / "vllm" / target.name
        with tempfile.TemporaryDirectory() as build_dir:
            configure = ["cmake", "-S", str(ROOT), "-B", build_dir]
            configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
            if shutil.which("ninja"):
                configure += ["-G", "Ninja"]
            subprocess.run(configure, check=True)
            subprocess.run(["cmake", "--build", build_dir, "--parallel"], check=True)
            built = next(Path(build_dir).glob("_C*.so"))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)  # a process may have the old one mapped
            shutil.copyfile(built, target)


setup(
    ext_modules=[Extension("vllm._C", sources=[], optional=True)],
    cmdclass={"build_ext": CMakeBuild},
)
