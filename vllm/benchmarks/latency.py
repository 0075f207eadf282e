# SPDX-License-Identifier: Apache-2.0
"""How long does one batch take, from prompt to last token?

Limited by memory bandwidth while decoding and by arithmetic while the prompt is read. Each
repeat has prompts of its own, so that the prefix cache answers none of them.
"""

import argparse
import time

from vllm.benchmarks import offline, report

USAGE = "vllm bench latency [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Shape of the batch, repeats, and the engine's options."""
    group = parser.add_argument_group("Benchmark", "Shape of the batch, and repeats.")
    group.add_argument("--input-len", type=int, default=32, help="Prompt tokens. Default: 32.")
    group.add_argument("--output-len", type=int, default=128, help="New tokens. Default: 128.")
    group.add_argument("--batch-size", type=int, default=8, help="Prompts. Default: 8.")
    group.add_argument("--num-iters-warmup", type=int, default=2, help="Unmeasured runs.")
    group.add_argument("--num-iters", type=int, default=5, help="Measured runs. Default: 5.")
    group.add_argument("--output-json", metavar="FILE", help="Write the record here as well.")
    offline.add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    llm = offline.make_llm(args)
    params = offline.fixed_length(args.output_len)
    seconds = []
    for iteration in range(args.num_iters_warmup + args.num_iters):
        prompts = offline.random_prompts(llm, args.batch_size, args.input_len, iteration)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        if iteration >= args.num_iters_warmup:
            seconds.append(time.perf_counter() - start)
    summary = report.summarize(seconds)
    rows = {f"latency {name}": f"{value:.3f} s" for name, value in summary.items()}
    rate = args.batch_size * args.output_len / summary["p50"]
    rows["output at the median"] = f"{rate:.1f} tokens/s"
    record = {
        "benchmark": "latency",
        "input_len": args.input_len,
        "output_len": args.output_len,
        "batch_size": args.batch_size,
        "latency_s": summary,
        "output_tokens_per_s": round(rate, 2),
    }
    report.print_report("Latency", rows, record, args.output_json)
    return 0
