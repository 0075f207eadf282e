# SPDX-License-Identifier: Apache-2.0
"""Size ceilings of files, functions, classes and parameter lists in `vllm/`.

Exceptions are listed here with their reason; one that is no longer needed fails the check, so
the list only shrinks.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80
MAX_METHODS = 20
MAX_ATTRIBUTES = 20
MAX_PARAMETERS = 8

# "path:qualified name:kind" -> why it may stay larger.
EXCEPTIONS: dict[str, str] = {
    "vllm/model_executor/layers/attention/attention.py:Attention.__init__:parameters": (
        "upstream's constructor, which models written for it call"
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something larger than its ceiling."""

    key: str
    message: str


def check_source(path: str, text: str) -> Iterator[Finding]:
    """Findings in one file's text."""
    num_lines = text.count("\n")
    if num_lines > MAX_FILE_LINES:
        yield Finding(f"{path}::file", f"{path}: {num_lines} lines, at most {MAX_FILE_LINES}")
    yield from _check_body(path, "", ast.parse(text).body)


def _check_body(path: str, prefix: str, body: list[ast.stmt]) -> Iterator[Finding]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _check_class(path, prefix, node)
            yield from _check_body(path, f"{prefix}{node.name}.", node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _check_function(path, prefix, node)


def _check_function(
    path: str, prefix: str, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[Finding]:
    name = prefix + node.name
    num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if num_lines > MAX_FUNCTION_LINES:
        yield Finding(
            f"{path}:{name}:lines",
            f"{path}:{node.lineno}: {name} has {num_lines} lines, at most {MAX_FUNCTION_LINES}",
        )
    args = [a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
    num_parameters = len([a for a in args if a not in ("self", "cls")])
    if num_parameters > MAX_PARAMETERS:
        yield Finding(
            f"{path}:{name}:parameters",
            f"{path}:{node.lineno}: {name} takes {num_parameters} parameters, at most "
            f"{MAX_PARAMETERS}",
        )


def _check_class(path: str, prefix: str, node: ast.ClassDef) -> Iterator[Finding]:
    name = prefix + node.name
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [m for m in methods if not _is_property(m)]
    if len(public) > MAX_METHODS:
        yield Finding(
            f"{path}:{name}:methods",
            f"{path}:{node.lineno}: {name} has {len(public)} methods, at most {MAX_METHODS}",
        )
    attributes = {
        target.attr
        for method in methods
        for statement in ast.walk(method)
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (
            statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        )
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }
    if len(attributes) > MAX_ATTRIBUTES:
        yield Finding(
            f"{path}:{name}:attributes",
            f"{path}:{node.lineno}: {name} sets {len(attributes)} attributes, at most "
            f"{MAX_ATTRIBUTES}",
        )


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list)


def judge(findings: list[Finding], exceptions: dict[str, str]) -> list[str]:
    """Messages for findings without an exception and for exceptions without a finding."""
    keys = {finding.key for finding in findings}
    messages = [f.message for f in findings if f.key not in exceptions]
    messages += [
        f"exception {key} is no longer needed: remove it" for key in exceptions.keys() - keys
    ]
    return messages


def main() -> int:
    """Check the tree; print what is wrong; 1 if anything is."""
    findings = [
        finding
        for path in sorted(Path("vllm").rglob("*.py"))
        for finding in check_source(str(path), path.read_text())
    ]
    messages = judge(findings, EXCEPTIONS)
    print("\n".join(messages) or "sizes: every file, function and class is within its ceiling")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
