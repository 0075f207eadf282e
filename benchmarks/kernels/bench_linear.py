# SPDX-License-Identifier: Apache-2.0
"""How close is the own `linear` to the machine's limits, and to torch's `F.linear`?

Few rows are limited by reading the weight (GB/s against a measured read of memory), many by
multiply-adds (GFLOP/s against a measured loop of them). A weight that fits the last-level cache
may read faster than memory. Each figure is the best of its repeats, since other work on the
machine can only slow one down; the median is in the record. The last line is one JSON record.

    python benchmarks/kernels/bench_linear.py --threads 2
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from vllm import _custom_ops as custom_ops

SHAPES = [(576, 1536), (3072, 576), (49152, 576)]  # (out, in)
ROWS = [1, 8, 32, 1024]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measure(call: Callable[[], object], budget_s: float) -> list[float]:
    """Seconds per call, after one to warm up: at least 3, then as many as fit the budget."""
    call()
    times: list[float] = []
    stop = time.perf_counter() + budget_s
    while len(times) < 3 or (time.perf_counter() < stop and len(times) < 500):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def machine_limits(threads: int) -> dict[str, float]:
    """Measured GB/s of reads and GFLOP/s of fp32 multiply-adds with this many threads."""
    data = torch.ones(64 << 20)  # 256 MiB: beyond any cache here
    read_s = min(measure(lambda: custom_ops.probe_read(data, threads), 1.0))
    iterations = 2_000_000
    done = custom_ops.probe_multiply_add(iterations, threads)
    peak_s = min(measure(lambda: custom_ops.probe_multiply_add(iterations, threads), 1.0))
    return {"read_gb_s": data.nbytes / read_s / 1e9, "fma_gflop_s": done / peak_s / 1e9}


def bench_case(
    out_in: tuple[int, int], num_rows: int, dtype_name: str, budget_s: float
) -> dict[str, Any]:
    """One product, own and torch's, from the same tensors."""
    n, k = out_in
    dtype = DTYPES[dtype_name]
    x, weight = torch.randn(num_rows, k).to(dtype), torch.randn(n, k).to(dtype)
    own = measure(lambda: custom_ops.linear(x, weight, None), budget_s)
    theirs = measure(lambda: torch.nn.functional.linear(x, weight), budget_s / 2)
    num_flops = 2.0 * num_rows * n * k
    return {
        "dtype": dtype_name,
        "out": n,
        "in": k,
        "rows": num_rows,
        "own_us": min(own) * 1e6,
        "own_median_us": statistics.median(own) * 1e6,
        "own_gb_s": weight.nbytes / min(own) / 1e9,
        "own_gflop_s": num_flops / min(own) / 1e9,
        "torch_gflop_s": num_flops / min(theirs) / 1e9,
    }


def main() -> None:
    """Print the table, then the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["fp32", "bf16"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--budget-s", type=float, default=0.5, help="seconds per product")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    limits = machine_limits(args.threads)
    print(
        f"{custom_ops.isa()}, {args.threads} threads: reads {limits['read_gb_s']:.1f} GB/s, "
        f"fp32 multiply-adds {limits['fma_gflop_s']:.0f} GFLOP/s"
    )
    cases = []
    for dtype_name in args.dtypes:
        for shape in SHAPES:
            for num_rows in args.rows:
                case = bench_case(shape, num_rows, dtype_name, args.budget_s)
                cases.append(case)
                print(
                    f"{dtype_name} {shape[0]:>6} x {shape[1]:<5} rows {num_rows:>5}: "
                    f"{case['own_us']:>9.0f} us {case['own_gb_s']:>6.1f} GB/s "
                    f"{case['own_gflop_s']:>6.1f} GFLOP/s (torch {case['torch_gflop_s']:.1f})",
                    flush=True,
                )
    print(
        json.dumps(
            {
                "benchmark": "linear",
                "isa": custom_ops.isa(),
                "threads": args.threads,
                "machine": platform.processor() or platform.machine(),
                "date": time.strftime("%Y-%m-%d"),
                "torch": torch.__version__,
                **limits,
                "cases": cases,
            }
        )
    )


if __name__ == "__main__":
    main()
