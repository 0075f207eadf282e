# SPDX-License-Identifier: Apache-2.0
"""What a launcher such as torchrun tells a process, in environment variables of its own."""

import os
from dataclasses import dataclass

from vllm.exceptions import ConfigError


@dataclass(frozen=True, slots=True)
class LauncherRank:
    """The place of this process among those the launcher started."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def launcher_rank() -> LauncherRank:
    """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; the latter two may be absent.

    Raises:
        ConfigError: a variable is missing or no number.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise ConfigError(_missing(name))
    rank, world_size = _number("RANK"), _number("WORLD_SIZE")
    return LauncherRank(
        rank=rank,
        world_size=world_size,
        local_rank=_number("LOCAL_RANK", rank),
        local_world_size=_number("LOCAL_WORLD_SIZE", world_size),
    )


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise ConfigError(_missing(name))
    if not text.isdigit():
        raise ConfigError(f"{name}={text!r} in the environment is no number")
    return int(text)


def _missing(name: str) -> str:
    return (
        f"distributed_executor_backend='external_launcher': {name} is not in the environment; "
        "start the program with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
    )
