# SPDX-License-Identifier: Apache-2.0
"""Runs one tiny checkpoint through the engine and says how it fared."""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tests.models.transformers.sweep.checkpoint import (
    FIRST_ORDINARY_TOKEN,
    NUM_OUTPUTS,
    NotBuiltError,
    Reference,
    prepare,
    prepare_config,
)
from tests.models.transformers.sweep.shrink import VOCAB_SIZE

TOLERANCE = 1e-4  # fp32 on both sides: differences are of summing order, some 1e-6.
Outcome = Literal["right", "refused", "wrong", "crash", "not built"]
OUTCOMES: tuple[Outcome, ...] = ("right", "refused", "wrong", "crash", "not built")


@dataclass(frozen=True, slots=True)
class Result:
    """How a model type fared.

    Attributes:
        model_type: as configurations name it.
        architecture: the model's class; empty if Transformers could not build it.
        outcome: "right" (logprobs within the tolerance), "refused" (a typed error at load),
            "wrong", "crash" (any other error), "not built" (neither does Transformers run it nor
            does the engine refuse its configuration).
        reason: one line; empty if right.
        difference: largest difference of a logprob; None if nothing was computed.
    """

    model_type: str
    architecture: str
    outcome: Outcome
    reason: str = ""
    difference: float | None = None


def classify(
    model_type: str, cache_dir: Path, model_impl: str, tell: Callable[[str], None]
) -> Result:
    """Build, run, compare.

    Args:
        model_type: as configurations name it.
        cache_dir: where checkpoints and references are kept.
        model_impl: the engine's argument.
        tell: told the stage that begins: should this process die, its parent knows where.
    """
    tell("build")
    try:
        path, reference = prepare(model_type, cache_dir)
    except NotBuiltError as error:
        return _without_reference(model_type, cache_dir, model_impl, str(error))
    outcome, reason, difference = _run(path, reference, model_impl, tell)
    return Result(
        model_type, reference.architecture, outcome, _one_line(reason, cache_dir), difference
    )


def _without_reference(model_type: str, cache_dir: Path, model_impl: str, why: str) -> Result:
    """What Transformers cannot run the engine must refuse, by the configuration alone."""
    from vllm.exceptions import ConfigError

    outcome: Outcome = "not built"
    reason, architecture = why, ""
    try:
        path, architecture = prepare_config(model_type, cache_dir)
        _engine(path, model_impl, load_format="dummy").shutdown()
    except NotBuiltError as error:
        reason = str(error)
    except ConfigError as error:
        outcome, reason = "refused", str(error)
    except Exception as error:
        outcome, reason = "crash", f"at load, {type(error).__name__}: {error}"
    return Result(model_type, architecture, outcome, _one_line(reason, cache_dir))


def _run(
    path: Path, reference: Reference, model_impl: str, tell: Callable[[str], None]
) -> tuple[Outcome, str, float | None]:
    from vllm.exceptions import ConfigError, ModelLoadError

    tell("load")
    try:
        llm = _engine(path, model_impl)
    except (ConfigError, ModelLoadError) as error:
        return "refused", str(error), None
    except Exception as error:
        return "crash", f"at load, {type(error).__name__}: {error}", None
    tell("run")
    errors = _FirstError()
    logging.getLogger("vllm").addHandler(errors)
    try:
        outputs = _generate(llm, reference)
    except Exception as error:
        return "crash", f"after start-up, {type(error).__name__}: {error}", None
    finally:
        logging.getLogger("vllm").removeHandler(errors)
        llm.shutdown()
    failed = [output.error for output in outputs if output.error is not None]
    if failed:
        return "crash", f"after start-up, {failed[0]}: {errors.first}", None
    return _compare(outputs, reference)


class _FirstError(logging.Handler):
    """Keeps the first exception that the engine logs: a request's own error names no cause."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Note where and what, once."""
        error = record.exc_info[1] if record.exc_info else None
        if self.first or error is None:
            return
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        self.first = f"{type(error).__name__} at {place}: {error}"


def _engine(path: Path, model_impl: str, load_format: str = "auto") -> Any:
    from vllm import LLM

    return LLM(
        model=str(path),
        model_impl=model_impl,
        load_format=load_format,
        dtype="float32",
        skip_tokenizer_init=True,
        generation_config="vllm",
        max_model_len=64,
        block_size=8,
        max_num_batched_tokens=16,
        max_num_seqs=4,
        num_gpu_blocks_override=64,
        max_logprobs=-1,
        disable_log_stats=True,
    )


def _generate(llm: Any, reference: Reference) -> list[Any]:
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0.0,
        max_tokens=NUM_OUTPUTS,
        ignore_eos=True,
        detokenize=False,
        logprobs=-1,
        allowed_token_ids=list(range(FIRST_ORDINARY_TOKEN, VOCAB_SIZE)),
        prompt_logprobs=-1,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in reference.prompts]
    outputs: list[Any] = llm.generate(prompts, params, use_tqdm=False)
    return outputs


def _compare(outputs: list[Any], reference: Reference) -> tuple[Outcome, str, float | None]:
    """Largest difference over the whole vocabulary, up to where greedy outputs part."""
    worst, where = 0.0, ""
    for index, output in enumerate(outputs):
        prompt, wanted = reference.prompts[index], reference.logprobs[index]
        got_ids = output.outputs[0].token_ids
        rows = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        num_common = _common(got_ids, reference.outputs[index])
        # The logprobs at the parting position are still comparable, those behind it are not.
        for position in range(min(len(prompt) + num_common, len(rows))):
            difference = _difference(rows[position], wanted[position])
            if not difference <= worst:
                worst = difference
                where = f"token {position + 1} after a prompt of {len(prompt)}"
    if worst <= TOLERANCE:
        return "right", "", worst
    return "wrong", f"logprobs differ by {worst:.2g} ({where})", worst


def _difference(got: dict[int, Any], wanted: torch.Tensor) -> float:
    values = torch.tensor([got[token].logprob for token in range(len(wanted))])
    return float((values - wanted).abs().max())


def _common(got: list[int], wanted: list[int]) -> int:
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a != b:
            return index
    return len(wanted)


def _one_line(text: str, cache_dir: Path) -> str:
    return " ".join(text.replace(str(cache_dir) + "/", "").split())
