# SPDX-License-Identifier: Apache-2.0
"""argparse as the `vllm` command uses it.

Options may be spelled with `_` or `-`, are never abbreviated, and an error is one sentence on
stderr. `--help=WORD` shows only the groups and options that WORD names. Imports nothing heavy.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import NoReturn


class VllmArgumentParser(argparse.ArgumentParser):
    """A parser with our spelling, errors and help."""

    def __init__(self, prog: str, description: str, usage: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            usage=usage,
            allow_abbrev=False,
            add_help=False,
            formatter_class=_Formatter,
        )
        self.add_argument(
            "-h",
            "--help",
            nargs="?",
            const="",
            metavar="WORD",
            help="Show this help, or only the groups and options that WORD names.",
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, after spelling options our way and answering --help."""
        given = [_dashed(a) for a in (sys.argv[1:] if args is None else args)]
        self._answer_help(given)
        return super().parse_known_args(given, namespace)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse everything; an unknown option is an error with the nearest known one."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._describe_unknown(unknown[0]))
        return parsed

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence and exit with 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _answer_help(self, given: Sequence[str]) -> None:
        for argument in given:
            if argument in ("-h", "--help"):
                self.print_help()
                self.exit()
            if argument.startswith("--help="):
                self._print_help_about(argument.removeprefix("--help="))
                self.exit()

    def _print_help_about(self, word: str) -> None:
        wanted = word.lower().replace("_", "-")
        formatter = self._get_formatter()
        found = False
        for group in self._action_groups:
            actions = [a for a in group._group_actions if a.help is not argparse.SUPPRESS]
            if wanted != (group.title or "").lower():
                actions = [a for a in actions if any(wanted in o for o in a.option_strings)]
            if not actions:
                continue
            found = True
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(actions)
            formatter.end_section()
        if not found:
            titles = ", ".join(g.title for g in self._action_groups if g.title)
            self.error(f"--help={word}: no group or option is called so; groups are {titles}")
        sys.stdout.write(formatter.format_help())

    def _describe_unknown(self, argument: str) -> str:
        name = argument.partition("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument {argument!r}"
        near = difflib.get_close_matches(name, self._option_string_actions, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown option {name}{hint}"


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36)


def _dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value
