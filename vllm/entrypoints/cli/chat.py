# SPDX-License-Identifier: Apache-2.0
"""`vllm chat`: a conversation with a running server."""

import argparse
import sys
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

USAGE = "vllm chat [OPTIONS]"
# Small models may go on to the end of their context. A limit in the request would be refused
# once the conversation leaves less room than it asks for, so the client leaves instead.
MAX_PIECES = 1_024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the conversation."""
    add_client_arguments(parser)
    add_sampling_arguments(
        parser,
        max_tokens=None,
        max_tokens_help=f"Most tokens of an answer. Default: about {MAX_PIECES}, or what the "
        "context leaves.",
    )
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
            answer = print_stream(_pieces(client, model, messages, sampling_fields(args)))
            messages.append({"role": "assistant", "content": answer})
        return 0

    return report_errors(talk)


def _pieces(
    client: Any, model: str, messages: list[dict[str, str]], sampling: dict[str, float]
) -> Iterator[str]:
    max_pieces = None if "max_tokens" in sampling else MAX_PIECES
    reason = None
    with client.chat.completions.create(
        model=model, messages=messages, stream=True, **sampling
    ) as stream:
        choices = (choice for chunk in stream for choice in chunk.choices)
        for count, choice in enumerate(choices):
            yield choice.delta.content or ""
            reason = choice.finish_reason or reason
            if reason is None and count == max_pieces:
                reason = "length"
                break
    if reason == "length":
        print("\n[cut: --max-tokens allows more]", end="", file=sys.stderr, flush=True)
