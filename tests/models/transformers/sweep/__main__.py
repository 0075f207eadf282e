# SPDX-License-Identifier: Apache-2.0
"""Command line of the sweep; exit code 0 if no type is wrong or crashes, else 1."""

import argparse
import difflib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Before any import that reads them: no network, one thread a process, no log but errors.
if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["OMP_NUM_THREADS"] = "1"

from tests.models.transformers.sweep import report
from tests.models.transformers.sweep.classify import Result
from tests.models.transformers.sweep.pool import all_model_types, run_all


def main() -> int:
    """Run, print, write or compare the page."""
    args = _parser().parse_args()
    known = all_model_types()
    unknown = [name for name in args.types if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=3)
        print(f"no causal-LM model type {unknown[0]!r}; near: {', '.join(near)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="vllm-sweep-") as temporary:
        cache_dir = Path(args.cache_dir or temporary).resolve()
        results = _run(args, args.types or known, cache_dir)
    print(report.summary(results))
    is_current = args.types or args.no_page or _handle_page(results, args.check)
    is_clean = not any(result.outcome in ("wrong", "crash") for result in results)
    return 0 if is_current and is_clean else 1


def _run(args: argparse.Namespace, types: Sequence[str], cache_dir: Path) -> list[Result]:
    results = []
    for result, seconds in run_all(
        types,
        cache_dir,
        model_impl=args.model_impl,
        num_jobs=args.jobs,
        limit_s=args.limit_s,
    ):
        print(report.line(result, seconds), flush=True)
        results.append(result)
    return results


def _handle_page(results: Sequence[Result], check: bool) -> bool:
    """Write the page, or say whether it is current."""
    text = report.page(results)
    if not check:
        report.PAGE.parent.mkdir(parents=True, exist_ok=True)
        report.PAGE.write_text(text, encoding="utf-8")
        return True
    old = report.PAGE.read_text(encoding="utf-8") if report.PAGE.is_file() else ""
    sys.stdout.writelines(
        difflib.unified_diff(old.splitlines(True), text.splitlines(True), "page", "now", n=0)
    )
    return old == text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sweep", description=__doc__)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="Model types; all if left out.")
    parser.add_argument("--check", action="store_true", help="Compare the page, do not write it.")
    parser.add_argument("--no-page", action="store_true", help="Neither write nor compare it.")
    parser.add_argument("--model-impl", default="transformers", help="The engine's argument.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Processes at once.")
    parser.add_argument("--limit-s", type=float, default=60.0, help="Seconds a type may take.")
    parser.add_argument("--cache-dir", help="Keep checkpoints and references here.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
