# SPDX-License-Identifier: Apache-2.0
"""The report for bug reports: limits that are none are called so."""

import pytest

from vllm import collect_env


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("max", "none"),
        ("9223372036854771712", "none"),
        (str(3 * 2**30), "3.00 GiB"),
        (str(64 * 2**30), "64.00 GiB (above the host's memory)"),
    ],
)
def test_a_control_groups_limit_in_words(text: str, shown: str) -> None:
    assert collect_env._cgroup_limit(text, 16 * 2**30) == shown


def test_an_environment_without_our_variables_is_said_to_be_so(monkeypatch) -> None:
    monkeypatch.setattr(collect_env, "_environment", dict)
    assert collect_env.report().endswith("Environment:\n  none set")
