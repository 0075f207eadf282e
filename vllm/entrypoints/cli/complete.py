# SPDX-License-Identifier: Apache-2.0
"""`vllm complete`: texts continued by a running server."""

import argparse
from collections.abc import Iterator
from typing import Any

from vllm.entrypoints.cli.client import (
    add_client_arguments,
    add_sampling_arguments,
    connect,
    print_stream,
    read_lines,
    report_errors,
    sampling_fields,
)

USAGE = "vllm complete [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the completion."""
    add_client_arguments(parser)
    add_sampling_arguments(parser, max_tokens=128, max_tokens_help="Most new tokens. Default: 128.")
    parser.add_argument("-q", "--quick", metavar="PROMPT", help="Continue one text and exit.")


def run(args: argparse.Namespace) -> int:
    """Continue each line of standard input."""
    client, model = connect(args)

    def complete() -> int:
        for line in [args.quick] if args.quick is not None else read_lines("> "):
            print_stream(_pieces(client, model, line, sampling_fields(args)))
        return 0

    return report_errors(complete)


def _pieces(client: Any, model: str, prompt: str, sampling: dict[str, float]) -> Iterator[str]:
    with client.completions.create(model=model, prompt=prompt, stream=True, **sampling) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                yield choice.text
