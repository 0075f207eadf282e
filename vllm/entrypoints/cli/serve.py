# SPDX-License-Identifier: Apache-2.0
"""`vllm serve [MODEL]`: engine and HTTP server."""

import argparse

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.cli_args import FrontendArgs

USAGE = "vllm serve [MODEL] [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of engine and server."""
    parser.add_argument(
        "model_tag",
        nargs="?",
        metavar="MODEL",
        help="Folder, .gguf file or hub id; the default model if left out.",
    )
    FrontendArgs.add_cli_args(parser)
    AsyncEngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    from vllm.entrypoints.openai.api_server import run_server

    if args.model_tag is not None:
        args.model = args.model_tag
    return run_server(AsyncEngineArgs.from_cli_args(args), FrontendArgs.from_cli_args(args))
