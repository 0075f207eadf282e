# SPDX-License-Identifier: Apache-2.0
"""An op: its plain PyTorch body is the definition, the fallback and the oracle.

Kernels register against the definition with a predicate over the arguments; the first whose
predicate holds runs. Owns the dispatch; knows no kernel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from vllm import envs

P = ParamSpec("P")
R = TypeVar("R")

# Read once: an op is dispatched thousands of times a second. Tests that switch kernels off use
# `Op.reference` or a subprocess.
_KERNELS_DISABLED: bool = envs.VLLM_DISABLE_KERNELS


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an implementation may be from the definition, and why."""

    atol: float
    rtol: float
    why: str

    @property
    def kwargs(self) -> dict[str, float]:
        """Arguments for `torch.testing.assert_close`."""
        return {"atol": self.atol, "rtol": self.rtol}


@dataclass(frozen=True, slots=True)
class Implementation(Generic[P, R]):
    """A kernel: its name, when it may run, and what runs."""

    name: str
    when: Callable[P, bool]
    run: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.run(*args, **kwargs)

    def __repr__(self) -> str:
        return self.name


class Op(Generic[P, R]):
    """A callable that runs the first implementation that takes the arguments.

    Attributes:
        reference: the definition.
        tolerance: per dtype, how far implementations may be from it.
    """

    def __init__(self, reference: Callable[P, R]) -> None:
        self.reference = reference
        self.tolerance: dict[torch.dtype, Tolerance] = {}
        self.__name__ = reference.__name__
        self.__doc__ = reference.__doc__
        self._implementations: list[Implementation[P, R]] = []

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        for implementation in self._implementations:
            if implementation.when(*args, **kwargs):
                return implementation.run(*args, **kwargs)
        return self.reference(*args, **kwargs)

    def implement(
        self, name: str, *, when: Callable[P, bool], available: bool = True
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Register a kernel. Later registrations are asked first; `available=False` skips it."""

        def register(run: Callable[P, R]) -> Callable[P, R]:
            if available and not _KERNELS_DISABLED:
                self._implementations.insert(0, Implementation(name, when, run))
            return run

        return register

    def available(self) -> list[Implementation[P, R]]:
        """Every implementation that can run on this machine, the definition last."""
        always: Callable[..., bool] = lambda *args, **kwargs: True  # noqa: E731
        return [*self._implementations, Implementation("reference", always, self.reference)]


def op(reference: Callable[P, R]) -> Op[P, R]:
    """Make an op of its definition."""
    return Op(reference)


def describe(ops: dict[str, Any]) -> str:
    """One line naming, per op, the implementations in the order they are asked."""
    return ", ".join(f"{name}: {'/'.join(map(repr, o.available()))}" for name, o in ops.items())


__all__ = ["Implementation", "Op", "Tolerance", "describe", "op"]
