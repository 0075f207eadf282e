# SPDX-License-Identifier: Apache-2.0
"""What `vllm chat` and `vllm complete` share: the connection to a running server."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vllm.entrypoints.cli.urls import api_url
from vllm.exceptions import ConfigError

if TYPE_CHECKING:
    import openai

DEFAULT_URL = "http://localhost:8000/v1"


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say which server and model."""
    group = parser.add_argument_group("Server", "Which server to ask, and for which model.")
    group.add_argument(
        "--url",
        "--base-url",
        default=DEFAULT_URL,
        help=f"The server's address, with or without /v1. Default: {DEFAULT_URL}.",
    )
    group.add_argument("--model-name", help="Model to ask for; the server's first if left out.")
    group.add_argument("--api-key", help="API key. Default: the variable OPENAI_API_KEY.")


def add_sampling_arguments(
    parser: argparse.ArgumentParser, *, max_tokens: int | None, max_tokens_help: str
) -> None:
    """Options that say how to answer.

    Args:
        max_tokens: default of that option.
    """
    group = parser.add_argument_group("Sampling", "How to answer; the server checks the values.")
    group.add_argument("--max-tokens", type=int, default=max_tokens, help=max_tokens_help)
    group.add_argument(
        "--temperature", type=float, help="0 takes the likeliest token. Default: the server's."
    )


def sampling_fields(args: argparse.Namespace) -> dict[str, float]:
    """The options of `add_sampling_arguments` that have a value, as fields of a request."""
    fields = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    return {name: value for name, value in fields.items() if value is not None}


def connect(args: argparse.Namespace) -> "tuple[openai.OpenAI, str]":
    """A client, and the model to ask for.

    Raises:
        ConfigError: the server cannot be reached or refuses.
    """
    try:
        import openai
    except ImportError:
        raise ConfigError("this command needs the openai package; pip install openai") from None

    url = api_url(args.url)
    key = args.api_key or os.environ.get("OPENAI_API_KEY") or "EMPTY"
    client = openai.OpenAI(base_url=url, api_key=key)
    if args.model_name is not None:
        return client, args.model_name
    try:
        return client, client.models.list().data[0].id
    except openai.APIConnectionError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error.__cause__):
            raise ConfigError(
                f"the certificate of {url} is not trusted; name its CA file in SSL_CERT_FILE"
            ) from None
        raise ConfigError(f"no server answers at {url}; start one or pass --url") from None
    except openai.APIStatusError as error:
        raise ConfigError(f"the server at {url} refused: {error.message}") from None


def read_lines(prompt: str) -> Iterator[str]:
    """Non-empty lines of standard input, until its end."""
    while True:
        try:
            line = input(prompt if sys.stdin.isatty() else "")
        except EOFError:
            return
        if line.strip():
            yield line


def print_stream(pieces: Iterator[str]) -> str:
    """Print pieces as they come; returns the whole."""
    said = []
    for piece in pieces:
        said.append(piece)
        print(piece, end="", flush=True)
    print()
    return "".join(said)


def report_errors(call: Callable[[], int]) -> int:
    """Run `call`, turning the server's refusals into one sentence.

    Raises:
        ConfigError: the server refused or went away.
    """
    import openai

    try:
        return call()
    except openai.APIConnectionError:
        raise ConfigError("the connection to the server broke") from None
    except openai.APIError as error:
        raise ConfigError(f"the server refused: {error.message}") from None
