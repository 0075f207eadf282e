# SPDX-License-Identifier: Apache-2.0
"""How many tokens per second, when there are always more prompts than fit a batch?

Limited by arithmetic for large batches, by the scheduler's limits on batch and step for small
models.
"""

import argparse
import time

from vllm.benchmarks import offline, report

USAGE = "vllm bench throughput [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Shape of the load, repeats, and the engine's options."""
    group = parser.add_argument_group("Benchmark", "Shape of the load, and repeats.")
    group.add_argument("--num-prompts", type=int, default=100, help="Prompts. Default: 100.")
    group.add_argument(
        "--dataset-name", choices=["random"], help="Prompts are random tokens; no other is offered."
    )
    group.add_argument(
        *("--input-len", "--random-input-len"),
        type=int,
        default=128,
        help="Prompt tokens. Default: 128.",
    )
    group.add_argument(
        *("--output-len", "--random-output-len"),
        type=int,
        default=64,
        help="New tokens. Default: 64.",
    )
    group.add_argument("--num-iters", type=int, default=3, help="Measured runs. Default: 3.")
    group.add_argument("--output-json", metavar="FILE", help="Write the record here as well.")
    offline.add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    llm = offline.make_llm(args)
    params = offline.fixed_length(args.output_len)
    warm_up = offline.random_prompts(llm, 4, args.input_len, seed=0)
    llm.generate(warm_up, offline.fixed_length(2), use_tqdm=False)
    seconds = []
    for iteration in range(args.num_iters):
        prompts = offline.random_prompts(llm, args.num_prompts, args.input_len, iteration + 1)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
    elapsed = report.summarize(seconds)
    output_tokens = args.num_prompts * args.output_len
    total_tokens = output_tokens + args.num_prompts * args.input_len
    rates = {
        "requests_per_s": args.num_prompts / elapsed["p50"],
        "output_tokens_per_s": output_tokens / elapsed["p50"],
        "total_tokens_per_s": total_tokens / elapsed["p50"],
    }
    rows = {name.replace("_per_s", "/s"): f"{value:.2f}" for name, value in rates.items()}
    rows["elapsed p50"] = f"{elapsed['p50']:.2f} s (std {elapsed['std']:.2f})"
    record = {
        "benchmark": "throughput",
        "num_prompts": args.num_prompts,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "elapsed_s": elapsed,
        **{name: round(value, 2) for name, value in rates.items()},
    }
    report.print_report("Throughput at the median run", rows, record, args.output_json)
    return 0
