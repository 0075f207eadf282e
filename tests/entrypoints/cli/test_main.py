# SPDX-License-Identifier: Apache-2.0
"""The command line: instant help, one-sentence errors, options spelled either way."""

import argparse
import subprocess
import sys

import pytest

from vllm.entrypoints.cli import main
from vllm.entrypoints.cli.parser import VllmArgumentParser
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.exceptions import ConfigError


def parser() -> VllmArgumentParser:
    built = VllmArgumentParser("vllm test", "Test.")
    FrontendArgs.add_cli_args(built)
    return built


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from vllm.entrypoints.cli.main import run; run(['--help']);"
        "print([m for m in ('torch', 'transformers', 'fastapi', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    assert all(any(name in line for line in lines) for name in main.COMMANDS)


def test_version_is_the_packages(capsys):
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("0.32.0")


@pytest.mark.parametrize("argv", [["fly"], ["bench"], ["bench", "fly"]])
def test_unknown_commands_name_the_known_ones(argv, capsys):
    assert main.run(argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "bench latency" in error


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["--prot", "1"], "--port"),
        (["--por", "1"], "--port"),
        (["extra"], "'extra'"),
        (["--port", "x"], "--port"),
        (["--allowed-origins", "a"], "--allowed-origins"),
    ],
)
def test_argument_errors_are_one_sentence(argv, hint, capsys):
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(argv)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.count("\n") == 1 and hint in error and "vllm test --help" in error


def test_options_may_be_spelled_with_underscores():
    args = FrontendArgs.from_cli_args(
        parser().parse_args(["--api_key", "a_b", "--api-key=c_d", "--shutdown_timeout=3"])
    )
    assert (args.api_key, args.shutdown_timeout) == (["a_b", "c_d"], 3.0)


def test_defaults_of_command_line_and_dataclass_agree():
    assert FrontendArgs.from_cli_args(parser().parse_args([])) == FrontendArgs()
    assert FrontendArgs().host == "127.0.0.1"


@pytest.mark.parametrize(("word", "shown"), [("Frontend", "--port"), ("api-key", "--api-key")])
def test_help_about_a_word_shows_only_that(word, shown, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args([f"--help={word}"])
    out = capsys.readouterr().out
    assert shown in out
    assert ("--port" in out) is (word == "Frontend")


def test_help_about_an_unknown_word_names_the_groups(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--help=xyz"])
    assert "Frontend" in capsys.readouterr().err


def test_every_option_has_help():
    shown = [a for a in parser()._actions if not isinstance(a, argparse._HelpAction)]
    assert all(action.help for action in shown)


def test_engine_errors_become_one_sentence(monkeypatch, capsys):
    class Command:
        USAGE = None

        @staticmethod
        def add_arguments(parser):
            pass

        @staticmethod
        def run(args):
            raise ConfigError("max_model_len=0: pass at least 1")

    monkeypatch.setattr(main.importlib, "import_module", lambda name: Command)
    assert main.run(["serve"]) == 1
    assert capsys.readouterr().err == "vllm serve: error: max_model_len=0: pass at least 1\n"


def test_collect_env_reports_every_section(capsys):
    assert main.run(["collect-env"]) == 0
    out = capsys.readouterr().out
    for title in ("Engine:", "System:", "Memory:", "Packages:", "Environment:"):
        assert title in out
    assert "unavailable" not in out


def test_collect_env_keeps_secrets(monkeypatch, capsys):
    monkeypatch.setenv("VLLM_API_KEY", "very-secret")
    assert main.run(["collect-env"]) == 0
    assert "very-secret" not in capsys.readouterr().out
