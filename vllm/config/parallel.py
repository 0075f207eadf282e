# SPDX-License-Identifier: Apache-2.0
"""How many processes share the model, and who starts them."""

from dataclasses import dataclass
from typing import Literal

from vllm.exceptions import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Parallel execution.

    Attributes:
        tensor_parallel_size: ranks that split every layer.
        distributed_executor_backend: "uni" runs the worker in the engine core's process.
    """

    tensor_parallel_size: int = 1
    distributed_executor_backend: Literal["uni"] = "uni"

    def __post_init__(self) -> None:
        if self.tensor_parallel_size != 1:
            raise ConfigError(
                f"tensor_parallel_size={self.tensor_parallel_size}: this version runs one rank; "
                "pass 1"
            )
        if self.distributed_executor_backend != "uni":
            raise ConfigError(
                f"distributed_executor_backend={self.distributed_executor_backend!r}: this "
                "version has 'uni' only"
            )
