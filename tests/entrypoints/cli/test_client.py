# SPDX-License-Identifier: Apache-2.0
"""What `vllm chat`, `complete` and `bench serve` make of addresses and options."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from vllm.benchmarks import serve as bench_serve
from vllm.benchmarks import throughput
from vllm.entrypoints.cli import chat, complete
from vllm.entrypoints.cli.client import sampling_fields
from vllm.entrypoints.cli.parser import VllmArgumentParser
from vllm.entrypoints.cli.urls import api_url, server_url
from vllm.exceptions import ConfigError


@pytest.mark.parametrize(
    ("given", "server"),
    [
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("localhost:9000", "http://localhost:9000"),
        ("127.0.0.1:9000/v1", "http://127.0.0.1:9000"),
        ("https://host/prefix", "https://host/prefix"),
        ("https://host/prefix/v1", "https://host/prefix"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
    ],
)
def test_an_address_may_have_v1_or_not(given: str, server: str) -> None:
    assert server_url(given) == server
    assert api_url(given) == f"{server}/v1"


@pytest.mark.parametrize(
    "given", ["", "http://", "ftp://host", "host:port", "http://a:99999", "a?b"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="pass an address like"):
        api_url(given)


def parse(module: Any, *argv: str) -> Any:
    parser = VllmArgumentParser("vllm test", "Test.")
    module.add_arguments(parser)
    return parser.parse_args(list(argv))


@pytest.mark.parametrize("option", ["--url", "--base-url", "--base_url"])
def test_commands_share_the_name_of_the_address(option: str) -> None:
    for module in (chat, complete):
        assert parse(module, option, "a:1").url == "a:1"
    assert parse(bench_serve, option, "a:1").base_url == "a:1"


def test_benchmarks_share_the_names_of_lengths() -> None:
    for prefix in ("--", "--random-"):
        argv = (f"{prefix}input-len=3", f"{prefix}output-len=4", "--dataset-name=random")
        served, offline = parse(bench_serve, *argv), parse(throughput, *argv)
        assert (served.random_input_len, served.random_output_len) == (3, 4)
        assert (offline.input_len, offline.output_len) == (3, 4)


def test_sampling_options_become_fields_only_where_they_are_given() -> None:
    assert sampling_fields(parse(chat)) == {}
    assert sampling_fields(parse(complete)) == {"max_tokens": 128}
    given = parse(chat, "--temperature=0", "--max-tokens=7")
    assert sampling_fields(given) == {"max_tokens": 7, "temperature": 0.0}


class _Stream:
    """A chat answer without end, or of `length` pieces cut by the server."""

    def __init__(self, length: int | None) -> None:
        self.length = length
        self.is_closed = False

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def __iter__(self) -> Iterator[Any]:
        count = 0
        while self.length is None or count < self.length:
            count += 1
            reason = "length" if count == self.length else None
            choice = SimpleNamespace(delta=SimpleNamespace(content="a"), finish_reason=reason)
            yield SimpleNamespace(choices=[choice])


@pytest.mark.parametrize(
    ("length", "sampling", "num_pieces"),
    [
        (None, {}, chat.MAX_PIECES + 1),
        (5, {"max_tokens": 5}, 5),
        (2000, {"max_tokens": 2000}, 2000),
    ],
)
def test_an_answer_without_end_is_left_and_the_cut_is_told(
    length: int | None, sampling: dict[str, float], num_pieces: int, capsys: Any
) -> None:
    stream = _Stream(length)
    completions = SimpleNamespace(create=lambda **_: stream)
    client = SimpleNamespace(chat=SimpleNamespace(completions=completions))
    pieces = list(chat._pieces(client, "m", [], sampling))
    assert len(pieces) == num_pieces and stream.is_closed
    assert "--max-tokens" in capsys.readouterr().err
