# SPDX-License-Identifier: Apache-2.0
"""What `vllm verify` prints: tables of the layers and of the prompts, and the verdict."""

from collections.abc import Mapping, Sequence

from vllm.entrypoints.verify.compare import Comparison, Parting
from vllm.entrypoints.verify.engine_run import EngineRun
from vllm.entrypoints.verify.layers import LayerFacts


def layer_table(layers: Sequence[LayerFacts]) -> str:
    """What each layer applies."""
    head = ("attention layer", "heads", "head size", "scale", "window", "soft cap", "sinks")
    rows = [(*head, "backend")]
    for layer in layers:
        size = f"{layer.head_size}"
        if layer.head_size_v != layer.head_size:
            size += f"/{layer.head_size_v}"
        rows.append(
            (
                layer.name,
                f"{layer.num_heads}/{layer.num_kv_heads}",
                size,
                f"{layer.scale:.6g}",
                "-" if layer.window is None else str(layer.window),
                "-" if layer.soft_cap is None else f"{layer.soft_cap:g}",
                "-" if layer.sinks is None else f"{layer.sinks[0]:.3f} to {layer.sinks[1]:.3f}",
                layer.backend,
            )
        )
    return _table(rows)


def prompt_table(
    runs: Sequence[EngineRun],
    comparisons: Sequence[Comparison | None],
    tokens: Mapping[int, str],
) -> str:
    """Per prompt the largest difference and the first token where greedy choices part.

    Args:
        runs: the engine's.
        comparisons: one per run; None where the engine failed.
        tokens: texts of token ids.
    """
    rows = [("prompt", "tokens", "max diff, prompt", "max diff, output", "at token", "parts")]
    for number, (run, comparison) in enumerate(zip(runs, comparisons, strict=True), 1):
        size = f"{len(run.prompt)}+{len(run.output)}"
        if comparison is None:
            rows.append((str(number), size, "-", "-", "-", f"failed: {run.error}"))
            continue
        rows.append(
            (
                str(number),
                size,
                f"{comparison.prompt_difference:.2e}",
                f"{comparison.output_difference:.2e}",
                str(comparison.worst_position),
                _parting(comparison.parting, tokens),
            )
        )
    return _table(rows)


def _parting(parting: Parting | None, tokens: Mapping[int, str]) -> str:
    if parting is None:
        return "nowhere"
    return (
        f"output token {parting.position}: engine {_token(parting.engine_token, tokens)}, "
        f"reference {_token(parting.reference_token, tokens)}, preferred by {parting.gap:.2e}"
    )


def _token(token: int, tokens: Mapping[int, str]) -> str:
    return f"{token} {tokens[token]!r}" if token in tokens else str(token)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
