# SPDX-License-Identifier: Apache-2.0
"""A process per model type, so that one that dies or hangs is a result and harms no other.

Processes are forked from one that has imported everything and computed nothing: imports are paid
once, and a fork of a process without running threads is safe.
"""

import importlib
import multiprocessing
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from tests.models.transformers.sweep.classify import Outcome, Result, classify

# Model code of Transformers that most others use, and what the engine imports only when it runs.
_COMMON_MODULES = (
    "transformers.models.llama.modeling_llama",
    "transformers.models.mixtral.modeling_mixtral",
    "transformers.models.auto.modeling_auto",
    "vllm.entrypoints.llm",
    "vllm.engine.resolve",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.worker",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.registry",
)
_FORK = multiprocessing.get_context("fork")


@dataclass(slots=True)
class _Job:
    model_type: str
    process: BaseProcess
    pipe: Connection
    deadline: float
    stage: str = "build"
    result: Result | None = None
    seconds: float = field(default_factory=time.monotonic)


def all_model_types() -> list[str]:
    """Every causal-LM model type of the installed Transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def import_all() -> None:
    """Import what every process needs, before the first fork."""
    import transformers

    for name in _COMMON_MODULES:
        importlib.import_module(name)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def run_all(
    model_types: Sequence[str], cache_dir: Path, *, model_impl: str, num_jobs: int, limit_s: float
) -> Iterator[tuple[Result, float]]:
    """Results with their seconds, as they come.

    Args:
        model_types: what to run, in this order.
        cache_dir: where checkpoints and references are kept.
        model_impl: the engine's argument.
        num_jobs: processes at a time.
        limit_s: seconds after which a process is ended.
    """
    import_all()
    waiting, running = list(model_types), list[_Job]()
    try:
        while waiting or running:
            while waiting and len(running) < num_jobs:
                running.append(_start(waiting.pop(0), cache_dir, model_impl, limit_s))
            for job in _finished(running):
                running.remove(job)
                yield _collect(job, limit_s), time.monotonic() - job.seconds
    finally:
        for job in running:
            _end(job)


def _start(model_type: str, cache_dir: Path, model_impl: str, limit_s: float) -> _Job:
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_child, args=(sender, model_type, cache_dir, model_impl))
    process.start()
    sender.close()
    return _Job(model_type, process, receiver, time.monotonic() + limit_s)


def _child(sender: Connection, model_type: str, cache_dir: Path, model_impl: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sender.send(classify(model_type, cache_dir, model_impl, sender.send))


def _finished(running: Sequence[_Job]) -> list[_Job]:
    """Wait for news; the jobs that have a result, died or ran out of time."""
    soonest = min(job.deadline for job in running)
    ready = wait([job.pipe for job in running], max(0.0, soonest - time.monotonic()))
    done = []
    for job in running:
        is_done = job.pipe in ready and _read(job)
        if is_done or time.monotonic() > job.deadline:
            done.append(job)
    return done


def _read(job: _Job) -> bool:
    """Take one message; whether it was the last."""
    try:
        message = job.pipe.recv()
    except EOFError:
        return True
    if isinstance(message, str):
        job.stage = message
        return False
    job.result = message
    return True


def _collect(job: _Job, limit_s: float) -> Result:
    is_late = job.result is None and job.process.is_alive() and time.monotonic() > job.deadline
    _end(job)
    if job.result is not None:
        return job.result
    how = f"took over {limit_s:g} s" if is_late else f"process ended with {job.process.exitcode}"
    outcome: Outcome = "not built" if job.stage == "build" else "crash"
    return Result(job.model_type, "", outcome, f"{how} (stage: {job.stage})")


def _end(job: _Job) -> None:
    job.process.join(5 if job.result is not None else 0)
    if job.process.is_alive():
        job.process.kill()
        job.process.join()
    job.pipe.close()
