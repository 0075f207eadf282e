# SPDX-License-Identifier: Apache-2.0
"""The size check finds what is too large, and exceptions that are no longer needed."""

import importlib.util
import sys
from pathlib import Path

SPEC = importlib.util.spec_from_file_location(
    "check_sizes", Path(__file__).parents[2] / "tools" / "check_sizes.py"
)
assert SPEC is not None and SPEC.loader is not None
check_sizes = importlib.util.module_from_spec(SPEC)
sys.modules["check_sizes"] = check_sizes
SPEC.loader.exec_module(check_sizes)


def keys(text: str) -> list[str]:
    return [finding.key for finding in check_sizes.check_source("f.py", text)]


def test_a_long_file_and_a_long_function_are_found():
    body = "".join(f"    x = {i}\n" for i in range(80))
    assert keys(f"def f():\n{body}") == ["f.py:f:lines"]
    assert keys("x = 1\n" * 501) == ["f.py::file"]
    assert keys(f"def f():\n{body[: -len('    x = 79' + chr(10))]}") == []


def test_a_method_with_many_parameters_is_found_without_counting_self():
    fits = ", ".join(f"p{i}" for i in range(8))
    assert keys(f"class C:\n    def f(self, {fits}): ...\n") == []
    assert keys(f"class C:\n    def f(self, {fits}, p8): ...\n") == ["f.py:C.f:parameters"]


def test_a_class_with_many_attributes_is_found():
    sets = "".join(f"        self.a{i} = {i}\n" for i in range(21))
    assert keys(f"class C:\n    def __init__(self):\n{sets}") == ["f.py:C:attributes"]


def test_an_exception_that_is_not_needed_fails():
    assert check_sizes.judge([], {"f.py::file": "why"}) == [
        "exception f.py::file is no longer needed: remove it"
    ]
    finding = check_sizes.Finding("f.py::file", "too long")
    assert check_sizes.judge([finding], {"f.py::file": "why"}) == []
    assert check_sizes.judge([finding], {}) == ["too long"]
