# SPDX-License-Identifier: Apache-2.0
"""`vllm verify [MODEL]`: compare the engine's logprobs with those of Transformers.

Exit code 0 if all are within the tolerance, 1 if not, 2 if the comparison could not be made.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import ConfigError, ModelLoadError, VLLMValidationError

USAGE = "vllm verify [MODEL] [--prompts FILE] [--max-tokens N] [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the prompts, and the engine's options."""
    parser.add_argument(
        "model_tag",
        nargs="?",
        metavar="MODEL",
        help="Folder, .gguf file or hub id; the default model if left out.",
    )
    group = parser.add_argument_group("Verification", "What is run on both sides.")
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="A prompt a line, as text or as a JSON list of token ids. Default: built-in prompts "
        "across the model's windows and the block size.",
    )
    group.add_argument(
        "--max-tokens", type=int, default=16, help="Output tokens per prompt. Default: 16."
    )
    EngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    try:
        return 0 if _verify(args) else 1
    except (ConfigError, ModelLoadError, VLLMValidationError) as error:
        print(f"vllm verify: error: {error}", file=sys.stderr)
        return 2


def _verify(args: argparse.Namespace) -> bool:
    from vllm.entrypoints.verify.prompts import read_prompts
    from vllm.entrypoints.verify.run import verify

    if args.model_tag is not None:
        args.model = args.model_tag
    if args.max_tokens < 1:
        raise ConfigError(f"--max-tokens {args.max_tokens}: pass at least 1")
    arguments = _engine_arguments(args)
    path = _checkpoint(arguments)
    prompts = read_prompts(Path(args.prompts)) if args.prompts is not None else None
    return verify(arguments | {"model": str(path)}, path, prompts, args.max_tokens)


def _engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `LLM`, so set that its logprobs are the model's own and enough are given."""
    engine_args = EngineArgs.from_cli_args(args)
    values: dict[str, Any] = {
        f.name: getattr(engine_args, f.name) for f in dataclasses.fields(engine_args)
    }
    if values["logprobs_mode"] != "raw_logprobs":
        raise ConfigError(
            f"logprobs_mode={values['logprobs_mode']!r}: only raw_logprobs can be compared; leave "
            "it out"
        )
    if values["load_format"] == "dummy":
        raise ConfigError(
            "load_format='dummy' makes up the engine's weights, so there is nothing to compare; "
            "leave it out"
        )
    return values | {"max_logprobs": -1}


def _checkpoint(arguments: dict[str, Any]) -> Path:
    """The folder or GGUF file that both sides read."""
    from vllm.transformers_utils.default_model import ensure_default_model
    from vllm.transformers_utils.repo_utils import resolve_model

    if arguments["model"] is None:
        return ensure_default_model()
    return resolve_model(
        arguments["model"],
        arguments["revision"],
        arguments["load_format"],
        download_dir=arguments["download_dir"],
    ).path
