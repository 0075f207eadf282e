# SPDX-License-Identifier: Apache-2.0
"""`vllm complete`: texts continued by a running server."""

import argparse
from collections.abc import Iterator
from typing import Any

from vllm.entrypoints.cli.client import (
    add_client_arguments,
    connect,
    print_stream,
    read_lines,
    report_errors,
)

USAGE = "vllm complete [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the completion."""
    add_client_arguments(parser)
    parser.add_argument("--max-tokens", type=int, default=128, help="Most tokens. Default: 128.")
    parser.add_argument("-q", "--quick", metavar="PROMPT", help="Continue one text and exit.")


def run(args: argparse.Namespace) -> int:
    """Continue each line of standard input."""
    client, model = connect(args)

    def complete() -> int:
        for line in [args.quick] if args.quick is not None else read_lines("> "):
            print_stream(_pieces(client, model, line, args.max_tokens))
        return 0

    return report_errors(complete)


def _pieces(client: Any, model: str, prompt: str, max_tokens: int) -> Iterator[str]:
    with client.completions.create(
        model=model, prompt=prompt, max_tokens=max_tokens, stream=True
    ) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                yield choice.text
