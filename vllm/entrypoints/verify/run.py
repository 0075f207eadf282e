# SPDX-License-Identifier: Apache-2.0
"""The order of a verification: engine, reference, comparison, report.

The engine is gone before the reference is loaded, so that memory holds one of them at a time.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm.entrypoints.verify import report
from vllm.entrypoints.verify.compare import (
    Comparison,
    Row,
    Tolerance,
    compare,
    mean_of,
    tolerance_for,
)
from vllm.entrypoints.verify.engine_run import NUM_LOGPROBS, EngineResult, EngineRun, run_engine
from vllm.entrypoints.verify.prompts import uncrossed_windows
from vllm.entrypoints.verify.reference import Question, ReferenceModel, needed_bytes, score
from vllm.exceptions import ConfigError


def verify(
    arguments: Mapping[str, Any],
    path: Path,
    prompts: Sequence[str | list[int]] | None,
    max_tokens: int,
) -> bool:
    """Run both sides, print the tables and the verdict.

    Args:
        arguments: of `LLM`.
        path: the checkpoint's folder or GGUF file on this machine.
        prompts: texts or token ids; None takes built-in ones.
        max_tokens: output tokens per prompt.

    Returns:
        Whether every logprob is within the tolerance.

    Raises:
        ConfigError: the model cannot be verified, on either side, and why.
        ModelLoadError: the checkpoint does not match the model.
        VLLMValidationError: a prompt does not fit the model.
    """
    print(_memory(path), flush=True)
    result = run_engine(arguments, prompts, max_tokens)
    _print_layers(result)
    reference = ReferenceModel(
        path,
        arguments["revision"],
        arguments["trust_remote_code"],
        arguments["hf_overrides"],
    )
    completed = [run for run in result.runs if run.error is None]
    comparisons, tolerance = compare_all(completed, reference, result.dtype)
    by_run = {id(run): c for run, c in zip(completed, comparisons, strict=True)}
    print(
        report.prompt_table(
            result.runs, [by_run.get(id(run)) for run in result.runs], result.tokens
        )
    )
    return _print_verdict(result, comparisons, tolerance)


def _memory(path: Path) -> str:
    """What the reference will need.

    Raises:
        ConfigError: more than this machine has.
    """
    from vllm.utils.mem_utils import format_bytes, memory_snapshot

    needed, memory = needed_bytes(path), memory_snapshot()
    if needed > memory.total:
        raise ConfigError(
            f"the reference needs {format_bytes(needed)} for its float32 weights, and this "
            f"process may use {format_bytes(memory.total)} (bound by {memory.bound_by}); verify "
            "on a larger machine, or a smaller model of the same architecture"
        )
    return (
        f"reference: Transformers, eager, float32, {format_bytes(needed)} of weights, after the "
        f"engine is freed ({format_bytes(memory.available)} available now)"
    )


def _print_layers(result: EngineResult) -> None:
    if result.layers is None:
        print("attention layers: in the ranks' own processes; run with one rank to see them")
        return
    print(report.layer_table(result.layers))
    windows = sorted({x.window for x in result.layers if x.window is not None})
    for window in uncrossed_windows(windows, [run.prompt for run in result.runs]):
        print(f"note: no prompt is longer than the window of {window}; pass longer ones")
    print(flush=True)


def compare_all(
    runs: Sequence[EngineRun], reference: ReferenceModel, dtype: str
) -> tuple[list[Comparison], Tolerance]:
    """Ask the reference about the engine's runs.

    Args:
        runs: without those that failed.
        reference: what to compare with.
        dtype: the engine's.

    Returns:
        Comparisons, one per run, and what counts as agreement.

    Raises:
        ConfigError: the reference cannot be had, and why.
    """
    if not runs:
        return [], tolerance_for("float32", [])
    questions = [
        Question([*run.prompt, *run.output], [list(row) for row in run.rows]) for run in runs
    ]
    single = score(reference, "float32", questions, NUM_LOGPROBS)
    comparisons = _compare_runs(runs, [run.rows for run in runs], single)
    if dtype != "float32":
        short = score(reference, dtype, questions, NUM_LOGPROBS)
        return comparisons, tolerance_for(dtype, _compare_runs(runs, short, single))
    tolerance = tolerance_for("float32", [])
    if tolerance.allows(comparisons):
        return comparisons, tolerance
    # At ill-conditioned tokens the reference itself is further than that from what it would be
    # without rounding, so that it takes a wider dtype to say who is wrong.
    double = _score_in_float64(reference, questions)
    if double is None:
        return comparisons, tolerance
    return (
        _compare_runs(runs, [run.rows for run in runs], double),
        tolerance_for("float32", _compare_runs(runs, single, double)),
    )


def _compare_runs(
    runs: Sequence[EngineRun], rows: Sequence[Sequence[Row]], reference: Sequence[Sequence[Row]]
) -> list[Comparison]:
    return [
        compare(own, wanted, run.output, num_listed=NUM_LOGPROBS)
        for run, own, wanted in zip(runs, rows, reference, strict=True)
    ]


def _score_in_float64(
    reference: ReferenceModel, questions: Sequence[Question]
) -> list[list[dict[int, float]]] | None:
    """The reference's answers in float64; None if it has none, which is said."""
    from vllm.utils.mem_utils import format_bytes, memory_snapshot

    needed, memory = 2 * needed_bytes(reference.path), memory_snapshot()
    if needed > memory.available:
        print(f"note: not compared in float64, which takes {format_bytes(needed)}")
        return None
    try:
        return score(reference, "float64", questions, NUM_LOGPROBS)
    except ConfigError as error:  # Some models' code names float32 here and there.
        print(f"note: not compared in float64: {error}")
        return None


def _print_verdict(
    result: EngineResult, comparisons: Sequence[Comparison], tolerance: Tolerance
) -> bool:
    num_failed = sum(run.error is not None for run in result.runs)
    is_within = tolerance.allows(comparisons) and not num_failed
    largest = max((c.difference for c in comparisons), default=0.0)
    words = f"largest logprob difference {largest:.2e}, allowed {tolerance.largest:.2e}"
    if tolerance.mean is not None:
        words += f"; mean {mean_of(comparisons):.2e}, allowed {tolerance.mean:.2e}"
    if num_failed:
        words += f"; {num_failed} prompts failed in the engine"
    print()
    if result.dtype != "float32":
        print("note: --dtype float32 leaves no rounding to allow for, and finds smaller faults")
    print(f"{'AGREES' if is_within else 'DIFFERS'}: {words} ({tolerance.why})")
    return is_within
