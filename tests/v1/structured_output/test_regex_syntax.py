# SPDX-License-Identifier: Apache-2.0
"""A quantifier on a quantifier is found wherever it stands, and nothing else is taken for one."""

import pytest

from vllm.v1.structured_output.regex_syntax import repeated_quantifier

FINE = [
    "a*?",
    "a??",
    "a{2}?",
    "a{2,}?",
    "[*+]+",
    r"a\**",
    r"\(?a",
    "(?:a)?",
    "(?i)a",
    r"\p{L}{2}",
    "[]*]+",
    "[^]*]+",
    "[[:alpha:]*]+",
    "a{,}*",
    "a{x}*",
    "(a*)*",
    "",
    "\\",
    "[",
    "a{",
]
REPEATED = {
    "a**": 2,
    "a+*": 2,
    "a??*": 3,
    "a{1,2}+": 6,
    "[a]*?+": 5,
    r"\\**": 3,
    r"\p{L}*+": 6,
    "(a)*+": 4,
    "foo**": 4,
    "a{2}{3}": 4,
}


@pytest.mark.parametrize("pattern", FINE)
def test_patterns_without_one(pattern: str) -> None:
    assert repeated_quantifier(pattern) is None


@pytest.mark.parametrize("pattern", REPEATED)
def test_patterns_with_one(pattern: str) -> None:
    assert repeated_quantifier(pattern) == REPEATED[pattern]
