# SPDX-License-Identifier: Apache-2.0
"""How many processes share the model, and who starts them."""

from dataclasses import dataclass
from typing import Literal, get_args

from vllm.exceptions import ConfigError

DistributedExecutorBackend = Literal["uni", "mp", "ray", "external_launcher"]
EXECUTOR_BACKENDS: tuple[str, ...] = get_args(DistributedExecutorBackend)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Parallel execution.

    Attributes:
        tensor_parallel_size: ranks that split every layer.
        distributed_executor_backend: who starts the ranks. "uni": the one rank runs in the
            engine core's process; "mp": the engine core starts a process for each on this
            machine; "ray": a Ray cluster does; "external_launcher": they are there already
            (torchrun), each with an engine of its own that gets the same requests.
    """

    tensor_parallel_size: int = 1
    distributed_executor_backend: DistributedExecutorBackend = "uni"

    def __post_init__(self) -> None:
        if self.tensor_parallel_size < 1:
            raise ConfigError(
                f"tensor_parallel_size={self.tensor_parallel_size}: pass the number of ranks, at "
                "least 1"
            )
        if self.distributed_executor_backend not in EXECUTOR_BACKENDS:
            raise ConfigError(
                f"distributed_executor_backend={self.distributed_executor_backend!r}: pass one of "
                + ", ".join(EXECUTOR_BACKENDS)
            )
        if self.distributed_executor_backend == "uni" and self.tensor_parallel_size > 1:
            raise ConfigError(
                f"distributed_executor_backend='uni' runs one rank, and tensor_parallel_size="
                f"{self.tensor_parallel_size}; pass 'mp', or leave the backend out"
            )
