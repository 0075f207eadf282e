# SPDX-License-Identifier: Apache-2.0
"""`vllm collect-env`: what a bug report should say about this machine.

Reads; changes nothing. Names no user, host or path beyond the interpreter's.
"""

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from vllm import envs
from vllm.version import __version__

USAGE = "vllm collect-env"
PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy", "msgspec", "pyzmq"),
    *("fastapi", "uvicorn", "pydantic", "prometheus_client", "openai", "llguidance", "triton"),
)
_CPU_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    print(report())
    return 0


def report() -> str:
    """The report, one section per subject."""
    sections: dict[str, Callable[[], dict[str, str]]] = {
        "Engine": _engine,
        "System": _system,
        "Memory": _memory,
        "Packages": _packages,
        "Environment": _environment,
    }
    lines = []
    for title, collect in sections.items():
        lines.append(f"{title}:")
        try:
            facts = collect()
        except Exception as error:  # one unreadable fact must not hide the others
            facts = {"unavailable": f"{type(error).__name__}: {error}"}
        lines += [f"  {name}: {value}" for name, value in facts.items()] or ["  none set"]
    return "\n".join(lines)


def _engine() -> dict[str, str]:
    import torch  # noqa: F401  # before the kernels: they share its OpenMP runtime

    from vllm import _custom_ops
    from vllm.platforms import current_platform

    has_kernels = _custom_ops.is_available()
    return {
        "vllm": __version__,
        "platform": type(current_platform()).__name__,
        "kernels": "compiled" if has_kernels else "none: runs on the PyTorch definitions",
        "instruction set": _custom_ops.isa() if has_kernels else "-",
        "instruction sets built in": ", ".join(_custom_ops.supported_isas())
        if has_kernels
        else "-",
    }


def _system() -> dict[str, str]:
    import torch

    model, flags = _cpu()
    return {
        "OS": platform.platform(),
        "Python": f"{sys.version.split()[0]} ({sys.executable})",
        "CPU": model,
        "CPU flags": " ".join(f for f in _CPU_FLAGS if f in flags) or "none of those used",
        "CPUs of this process": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "torch threads": str(torch.get_num_threads()),
        "torch CPU capability": torch.backends.cpu.get_cpu_capability(),
        "CUDA": torch.version.cuda or "-",
        "ROCm": torch.version.hip or "-",
        "GPUs": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        or "none",
    }


def _cpu() -> tuple[str, set[str]]:
    model, flags = platform.processor() or platform.machine(), set[str]()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
    return model, flags


def _memory() -> dict[str, str]:
    import psutil

    from vllm.platforms import current_platform

    host = psutil.virtual_memory()
    facts = {"host total": _gib(host.total), "host available": _gib(host.available)}
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup", name)
        if limit.exists():
            text = limit.read_text().strip()
            facts["cgroup limit"] = _cgroup_limit(text, host.total)
    memory = current_platform().get_device_memory()
    facts["engine may use"] = f"{_gib(memory.total)} (bound by {memory.bound_by})"
    facts["of which left"] = _gib(memory.available)
    return facts


def _cgroup_limit(text: str, host_total: int) -> str:
    # Version 2 of control groups writes "max" for none, version 1 a number near 2^63.
    if not text.isdigit() or int(text) >= 2**60:
        return "none"
    note = " (above the host's memory)" if int(text) > host_total else ""
    return _gib(int(text)) + note


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _environment() -> dict[str, str]:
    """Variables that change the engine; secrets by presence only."""
    names = [n for n in os.environ if n.startswith(("VLLM_", "OMP_", "HF_HUB_OFFLINE", "KMP_"))]
    facts = {n: "set" if "KEY" in n else os.environ[n] for n in sorted(names)}
    unknown = envs.unknown_variables()
    if unknown:
        facts["not read by this engine"] = ", ".join(unknown)
    return facts


if __name__ == "__main__":
    print(report())
