# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks share: percentiles, the machine, and the JSON record on the last line."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm.version import __version__

PERCENTILES = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Value below which `percent` percent of `values` lie, interpolated between neighbours.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values: nothing was measured")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Mean, spread and percentiles; empty if nothing was measured."""
    if not values:
        return {}
    summary = {"mean": statistics.fmean(values), "std": statistics.pstdev(values)}
    summary |= {f"p{p}": percentile(values, p) for p in PERCENTILES}
    return {name: round(value, 6) for name, value in summary.items()}


def machine() -> dict[str, Any]:
    """Where and with what the numbers were taken."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return {
        "cpu": cpu,
        "num_cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "vllm": __version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["vllm", *sys.argv[1:]]),
    }


def print_report(
    title: str, rows: Mapping[str, str], record: Mapping[str, Any], path: str | None
) -> None:
    """Print a table for people, then the record as JSON on the last line; also into `path`."""
    width = max(map(len, rows))
    print(title)
    for name, value in rows.items():
        print(f"  {name:<{width}}  {value}")
    text = json.dumps({**record, "machine": machine()}, allow_nan=False)
    if path is not None:
        Path(path).write_text(text + "\n")
    print(text, flush=True)
