# SPDX-License-Identifier: Apache-2.0
"""The `vllm` command: finds the subcommand and hands over.

A subcommand's module is imported only when it runs, so that `vllm --help` is instant. Each has
`USAGE`, `add_arguments(parser)` and `run(args) -> int`.
"""

import importlib
import sys
from collections.abc import Sequence

from vllm.entrypoints.cli.parser import VllmArgumentParser
from vllm.exceptions import ConfigError, ModelLoadError, VLLMError
from vllm.version import __version__

_CLI = "vllm.entrypoints.cli"
COMMANDS = {
    "serve": (f"{_CLI}.serve", "Serve a model over an OpenAI-compatible API."),
    "chat": (f"{_CLI}.chat", "Talk to a running server, turn by turn."),
    "complete": (f"{_CLI}.complete", "Let a running server continue texts."),
    "bench latency": (
        "vllm.benchmarks.latency",
        "Time one batch from prompt to last token, in this process.",
    ),
    "bench throughput": (
        "vllm.benchmarks.throughput",
        "Tokens per second over many prompts, in this process.",
    ),
    "bench serve": (
        "vllm.benchmarks.serve",
        "Load a running server: time to first token, between tokens, in all.",
    ),
    "verify": (
        f"{_CLI}.verify",
        "Compare this engine's logprobs with those of Transformers.",
    ),
    "collect-env": (
        "vllm.collect_env",
        "Print what a bug report should say about this machine.",
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Run the command line; returns the exit code."""
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(_overview())
        return 0
    if name in ("-v", "--version"):
        print(__version__)
        return 0
    if " ".join(argv[:2]) in COMMANDS:
        name = " ".join(argv[:2])
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        given = " ".join(argv[:2])[:80]
        print(f"vllm: error: no command {given!r}; commands are {known}", file=sys.stderr)
        return 2
    return _run_command(name, argv[len(name.split()) :])


def _run_command(name: str, argv: list[str]) -> int:
    module_name, description = COMMANDS[name]
    module = importlib.import_module(module_name)
    parser = VllmArgumentParser(f"vllm {name}", description, module.USAGE)
    module.add_arguments(parser)
    try:
        return int(module.run(parser.parse_args(argv)))
    except KeyboardInterrupt:
        return 130
    except (ConfigError, ModelLoadError) as error:
        print(f"vllm {name}: error: {error}", file=sys.stderr)
        return 1
    except VLLMError as error:
        print(f"vllm {name}: {error}", file=sys.stderr)
        return 1


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {doc}" for name, (_, doc) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: vllm COMMAND [OPTIONS]",
            "",
            "An engine that serves language models.",
            "",
            *lines,
            "",
            "vllm COMMAND --help says more; vllm --version prints the version.",
        ]
    )


if __name__ == "__main__":
    main()
