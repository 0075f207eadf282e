# SPDX-License-Identifier: Apache-2.0
"""Engine arguments: one description for keywords and flags, and nothing swallowed."""

import argparse
import dataclasses

import pytest

from vllm.engine.arg_spec import human_int
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.engine.unsupported_args import UNSUPPORTED
from vllm.exceptions import ConfigError


def parse(*argv: str) -> AsyncEngineArgs:
    parser = argparse.ArgumentParser()
    AsyncEngineArgs.add_cli_args(parser)
    return AsyncEngineArgs.from_cli_args(parser.parse_args(argv))


def test_flags_without_values_are_the_defaults() -> None:
    assert parse() == AsyncEngineArgs()


def test_flags_and_keywords_say_the_same() -> None:
    args = parse(
        *("--model", "m", "--max-model-len", "4k", "--no-enable-prefix-caching"),
        *("--hf-overrides", '{"a": 1}', "--served-model-name", "x", "y"),
    )
    assert args == AsyncEngineArgs(
        "m",
        max_model_len=4000,
        enable_prefix_caching=False,
        hf_overrides={"a": 1},
        served_model_name=["x", "y"],
    )


def test_every_argument_is_described_and_appears_in_the_help() -> None:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    text = parser.format_help()
    for field in dataclasses.fields(EngineArgs):
        assert "--" + field.name.replace("_", "-") in text
        assert field.metadata["spec"].help.endswith(".")
    assert "--enable-lora" not in text


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'max_num_seqs'"):
        EngineArgs("m", max_num_seq=4)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_arguments_pass_at_neutral_values_only(name: str) -> None:
    for value in UNSUPPORTED[name].neutral:
        EngineArgs("m", **{name: value})
    with pytest.raises(ConfigError, match=name):
        EngineArgs("m", **{name: "something else"})


def test_an_unsupported_flag_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="adapters are not supported"):
        parse("--enable-lora")
    assert parse("--pipeline-parallel-size", "1") == parse()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", "8"),
        ("max_num_seqs", True),
        ("seed", 1.5),
        ("trust_remote_code", 1),
        ("scheduling_policy", "lifo"),
        ("load_format", "pt"),
        ("hf_overrides", "x"),
    ],
)
def test_values_of_a_wrong_type_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineArgs("m", **{name: value})


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4k", 4000), ("4K", 4096), ("1.5M", 3 * 2**19), ("2g", 2 * 10**9)],
)
def test_numbers_as_people_write_them(text: str, value: int) -> None:
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["", "-4", "k", "4.5", "1e3", "4 k", "NaN"])
def test_other_texts_are_no_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        human_int(text)
