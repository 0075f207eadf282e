# SPDX-License-Identifier: Apache-2.0
"""Every environment variable the engine reads, in one table.

Read as attributes (`envs.VLLM_CACHE_ROOT`); the value is parsed at each read, so tests may set
variables late. Variables hold paths and debugging aids only; behaviour belongs in `EngineArgs`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One variable: its default, how its text is parsed, and what it is for."""

    default: Any
    parse: Callable[[str], Any]
    doc: str


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("", "0", "false", "no", "off"):
        return False
    raise ValueError(f"{text!r} is not a switch; use 1 or 0")


def _path(text: str) -> str:
    return str(Path(text).expanduser())


VARIABLES: dict[str, EnvVar] = {
    "VLLM_CACHE_ROOT": EnvVar(
        lambda: os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.join(Path.home(), ".cache"), "vllm"
        ),
        _path,
        "Folder for the default model and other files that may be fetched again.",
    ),
    "VLLM_CPU_KVCACHE_SPACE": EnvVar(
        None, float, "KV cache size on the CPU in GiB; exact, overrides gpu_memory_utilization."
    ),
    "VLLM_CPU_ISA": EnvVar(
        None, str, "Force the kernels' instruction set: avx512bf16, avx512, avx2 or scalar."
    ),
    "VLLM_DISABLE_KERNELS": EnvVar(
        False, _flag, "Run every op on its PyTorch definition instead of a compiled kernel."
    ),
    "VLLM_LOGGING_LEVEL": EnvVar("INFO", str.upper, "DEBUG, INFO, WARNING or ERROR."),
    "VLLM_API_KEY": EnvVar(None, str, "API key of the server; --api-key takes precedence."),
    "VLLM_ENGINE_HANG_TIMEOUT_S": EnvVar(
        10.0,
        float,
        "Seconds without a pulse after which /health calls the engine hung; a single step may "
        "take ten times as long.",
    ),
    "VLLM_CHECK_INTEGRITY": EnvVar(
        False, _flag, "Check the block pool's invariants whenever the engine falls idle."
    ),
}


def __getattr__(name: str) -> Any:
    """Value of variable `name`.

    Raises:
        AttributeError: the variable is not in the table.
        ValueError: its text cannot be parsed.
    """
    variable = VARIABLES.get(name)
    if variable is None:
        raise AttributeError(f"module {__name__!r} has no variable {name!r}")
    text = os.environ.get(name)
    if text is None:
        return variable.default() if callable(variable.default) else variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ValueError(f"environment variable {name}={text!r}: {error}") from None


def unknown_variables() -> list[str]:
    """Names that start with VLLM_ in the environment and are not in the table."""
    return sorted(k for k in os.environ if k.startswith("VLLM_") and k not in VARIABLES)


if TYPE_CHECKING:
    VLLM_CACHE_ROOT: str
    VLLM_CPU_KVCACHE_SPACE: float | None
    VLLM_CPU_ISA: str | None
    VLLM_DISABLE_KERNELS: bool
    VLLM_LOGGING_LEVEL: str
    VLLM_API_KEY: str | None
    VLLM_ENGINE_HANG_TIMEOUT_S: float
    VLLM_CHECK_INTEGRITY: bool
