# SPDX-License-Identifier: Apache-2.0
"""How does a running server behave under load: first token, between tokens, in all?

Limited by the server and by this process, which parses every event: run it on other cores than
the server's. Times are taken at the client, so they include HTTP. Prompts are random tokens.
"""

import argparse
import asyncio
import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from vllm.benchmarks import report
from vllm.benchmarks.load import LoadOptions, RequestResult, generate_load, get_token_pool
from vllm.entrypoints.cli.urls import server_url
from vllm.exceptions import ConfigError

if TYPE_CHECKING:
    import httpx

USAGE = "vllm bench serve [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, and the shape of the load."""
    group = parser.add_argument_group("Server", "Which server to load.")
    group.add_argument(
        "--base-url",
        "--url",
        help="The server's address, with or without /v1; overrides --host and --port.",
    )
    group.add_argument("--host", default="127.0.0.1", help="Default: 127.0.0.1.")
    group.add_argument("--port", type=int, default=8000, help="Default: 8000.")
    group.add_argument("--model", help="Model to ask for; the server's first if left out.")
    group.add_argument(
        *("--backend", "--endpoint-type"),
        choices=["vllm", "openai"],
        help="Both mean /v1/completions, the one endpoint that is measured.",
    )
    load = parser.add_argument_group("Load", "How many requests, how long, how fast.")
    load.add_argument(
        "--dataset-name", choices=["random"], help="Prompts are random tokens; no other is offered."
    )
    load.add_argument("--num-prompts", type=int, default=100, help="Requests. Default: 100.")
    load.add_argument("--num-warmups", type=int, default=2, help="Unmeasured ones. Default: 2.")
    load.add_argument(
        *("--random-input-len", "--input-len"), type=int, default=128, help="Default: 128 tokens."
    )
    load.add_argument(
        *("--random-output-len", "--output-len"), type=int, default=64, help="Default: 64 tokens."
    )
    load.add_argument("--max-concurrency", type=int, help="Most at once; unbounded if left out.")
    load.add_argument(
        "--request-rate",
        type=float,
        default=float("inf"),
        help="Requests per second, at random (Poisson) intervals; all at once if left out.",
    )
    load.add_argument(
        "--ignore-eos", action="store_true", help="Always on: every answer has the length asked."
    )
    load.add_argument("--seed", type=int, default=0, help="Of prompts and intervals. Default: 0.")
    load.add_argument(
        *("--output-json", "--result-filename"), metavar="FILE", help="Write the record here too."
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print; fails if any request failed."""
    if not args.request_rate > 0:
        raise ConfigError(f"request_rate={args.request_rate}: pass a positive number")
    elapsed_s, results = asyncio.run(_measure(args))
    failed = [r.error for r in results if r.error is not None]
    record = _record(args, elapsed_s, results)
    rows = {
        "requests": f"{len(results) - len(failed)} done, {len(failed)} failed",
        "elapsed": f"{elapsed_s:.2f} s",
        "output": f"{record['output_tokens_per_s']:.1f} tokens/s",
    }
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        summary = record[name]
        rows[name] = ", ".join(f"{k} {v:.1f}" for k, v in summary.items()) or "-"
    report.print_report("Serving", rows, record, args.output_json)
    if failed:
        raise ConfigError(f"{len(failed)} of {len(results)} requests failed, first: {failed[0]}")
    return 0


async def _measure(args: argparse.Namespace) -> tuple[float, list[RequestResult]]:
    import httpx

    base_url = server_url(args.base_url or f"{args.host}:{args.port}")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, timeout=600, limits=limits
    ) as client:
        try:
            options = await _options(client, args)
        except httpx.HTTPError as error:
            raise ConfigError(f"the server at {base_url} did not answer: {error}") from None
        # Other prompts than the measured ones, which must not meet a warm prefix cache.
        warm_up = dataclasses.replace(options, num_requests=args.num_warmups, seed=options.seed + 1)
        await generate_load(client, warm_up)
        start = time.perf_counter()
        results = await generate_load(client, options)
        return time.perf_counter() - start, results


async def _options(client: "httpx.AsyncClient", args: argparse.Namespace) -> LoadOptions:
    model = args.model
    if model is None:
        answer = (await client.get("/v1/models")).raise_for_status()
        model = answer.json()["data"][0]["id"]
    return LoadOptions(
        model=model,
        token_pool=await get_token_pool(client, model),
        num_requests=args.num_prompts,
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        max_concurrency=args.max_concurrency,
        request_rate=args.request_rate,
        seed=args.seed,
    )


def _record(
    args: argparse.Namespace, elapsed_s: float, results: list[RequestResult]
) -> dict[str, Any]:
    done = [r for r in results if r.error is None]
    output_tokens = sum(r.num_output_tokens for r in done)
    ms = 1e3
    return {
        "benchmark": "serve",
        "num_prompts": len(results),
        "num_failed": len(results) - len(done),
        "input_len": args.random_input_len,
        "output_len": args.random_output_len,
        "max_concurrency": args.max_concurrency,
        "request_rate": args.request_rate if args.request_rate != float("inf") else None,
        "elapsed_s": round(elapsed_s, 3),
        "requests_per_s": round(len(done) / elapsed_s, 3),
        "output_tokens_per_s": round(output_tokens / elapsed_s, 2),
        "ttft_ms": report.summarize([r.ttft_s * ms for r in done]),
        "itl_ms": report.summarize([gap * ms for r in done for gap in r.gaps_s]),
        "e2e_ms": report.summarize([r.total_s * ms for r in done]),
    }
