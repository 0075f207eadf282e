# SPDX-License-Identifier: Apache-2.0
"""The compiled extension: every instruction set, one OpenMP runtime, and life without it."""

import os
import subprocess
import sys

import pytest

from vllm import _custom_ops as custom_ops

needs_extension = pytest.mark.extension


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | env
    )


@needs_extension
@pytest.mark.parametrize("isa", custom_ops.supported_isas() or ["none"])
def test_every_instruction_set_passes_the_op_tests(isa):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
         os.path.join(os.path.dirname(__file__), "test_ops.py")],
        capture_output=True, text=True, env=os.environ | {"VLLM_CPU_ISA": isa},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:]
    got = run("from vllm import _custom_ops as c; print(c.isa())", VLLM_CPU_ISA=isa)
    assert got.stdout.strip() == isa


@needs_extension
def test_an_instruction_set_the_cpu_lacks_is_refused_in_one_sentence():
    result = run("from vllm import _custom_ops as c; c.is_available()", VLLM_CPU_ISA="sse9")
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert "sse9" in last and "this CPU runs" in last and "scalar" in last


@needs_extension
def test_the_kernels_share_torchs_openmp_runtime():
    code = (
        "from vllm import _custom_ops as c; c.is_available()\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "print(len({m for m in maps if 'libgomp' in m or 'libomp' in m or 'libiomp' in m}))"
    )
    assert run(code).stdout.strip() == "1"


def test_ops_run_on_their_definitions_when_kernels_are_switched_off():
    code = (
        "import torch; from vllm.ir.ops import rms_norm\n"
        "print(rms_norm.available(), rms_norm(torch.ones(1, 4), torch.ones(4), 0.0).tolist())"
    )
    assert (
        run(code, VLLM_DISABLE_KERNELS="1").stdout.strip() == "[reference] [[1.0, 1.0, 1.0, 1.0]]"
    )


def test_a_missing_extension_is_said_once_and_does_no_harm():
    code = (
        "import sys; sys.modules['vllm._C'] = None\n"
        "import torch; from vllm.ir.ops import rms_norm, silu_and_mul\n"
        "rms_norm(torch.ones(1, 4), torch.ones(4), 0.0); silu_and_mul(torch.ones(1, 4))"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("Compiled kernels are not available") == 1
