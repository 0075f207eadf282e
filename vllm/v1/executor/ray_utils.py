# SPDX-License-Identifier: Apache-2.0
"""The one door to Ray, which is optional, and the actor that holds a rank."""

import importlib
import os
from dataclasses import dataclass
from typing import Any

from vllm.exceptions import ConfigError
from vllm.utils.network_utils import get_open_port, loopback_interface
from vllm.v1.executor.remote import answer_call


def import_ray() -> Any:
    """The module `ray`.

    Raises:
        ConfigError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            "distributed_executor_backend='ray': the package ray cannot be imported "
            f"({error}); install it with `pip install ray`, on every machine of the cluster"
        ) from None


@dataclass(frozen=True, slots=True)
class RayPlace:
    """Where a rank is, as it is told to it.

    Attributes:
        init_method: where the ranks meet.
        local_world_size: ranks on its machine.
        num_threads: what the user set for each rank, or None.
        is_one_machine: whether all ranks are on one.
    """

    rank: int
    init_method: str
    local_world_size: int
    num_threads: str | None
    is_one_machine: bool


class RayWorker:
    """An actor: holds a rank's worker and answers calls in bytes, like a rank of `mp`.

    torch is imported in `start`, when it is known how many threads this rank may take.
    """

    def __init__(self) -> None:
        self._worker: Any = None
        self._rank = 0

    def node(self) -> tuple[str, str]:
        """Id and address of this machine."""
        ray = import_ray()
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def free_port(self) -> int:
        """A TCP port that is free now."""
        return get_open_port("0.0.0.0")

    def ping(self) -> None:
        """Answer."""

    def start(self, config: bytes, place: RayPlace) -> None:
        """Make the worker."""
        from vllm.distributed.utils import threads_per_rank
        from vllm.v1.engine.serialization import decode_config

        # Ray sets this to the CPUs an actor has booked, which here stand for a place only.
        threads = place.num_threads or str(threads_per_rank(place.local_world_size))
        os.environ["OMP_NUM_THREADS"] = threads
        if place.is_one_machine:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
        from vllm.v1.worker.worker import Worker

        self._rank = place.rank
        self._worker = Worker(
            decode_config(config),
            rank=place.rank,
            distributed_init_method=place.init_method,
            local_world_size=place.local_world_size,
        )

    def call(self, data: bytes) -> bytes:
        """Answer a call."""
        return answer_call(self._worker.call, self._rank, data)
