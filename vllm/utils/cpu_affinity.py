# SPDX-License-Identifier: Apache-2.0
"""How many CPUs this process may really use: its affinity mask and its control groups' quota."""

import math
import os
from pathlib import Path

from vllm.utils.mem_utils import cgroup_directories, read_int


def allowed_cpus() -> list[int]:
    """CPUs in this process's affinity mask, in order."""
    if hasattr(os, "sched_getaffinity"):  # absent outside Linux
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs' worth of time the control groups grant, the least over all levels; None: no quota."""
    quotas = []
    for folder in cgroup_directories(root, ""):
        words = _words(folder / "cpu.max")
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
    for folder in cgroup_directories(root, "cpu"):
        quota = read_int(folder / "cpu.cfs_quota_us")
        period = read_int(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def usable_cpus(root: Path = Path("/")) -> int:
    """Threads that can run at once: at least 1; part of a CPU counts as one."""
    num_cpus = len(allowed_cpus())
    quota = cpu_quota(root)
    return max(1, num_cpus if quota is None else min(num_cpus, math.ceil(quota)))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
