# SPDX-License-Identifier: Apache-2.0
"""`vllm chat`: a conversation with a running server."""

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

USAGE = "vllm chat [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the conversation."""
    add_client_arguments(parser)
    parser.add_argument("--system-prompt", help="System message at the head of the conversation.")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="Send one message and exit.")


def run(args: argparse.Namespace) -> int:
    """Talk until standard input ends."""
    client, model = connect(args)
    messages: list[dict[str, str]] = []
    if args.system_prompt:
        messages.append({"role": "system", "content": args.system_prompt})

    def talk() -> int:
        for line in [args.quick] if args.quick is not None else read_lines("> "):
            messages.append({"role": "user", "content": line})
            answer = print_stream(_pieces(client, model, messages))
            messages.append({"role": "assistant", "content": answer})
        return 0

    return report_errors(talk)


def _pieces(client: Any, model: str, messages: list[dict[str, str]]) -> Iterator[str]:
    with client.chat.completions.create(model=model, messages=messages, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                yield choice.delta.content or ""
