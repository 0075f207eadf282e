# SPDX-License-Identifier: Apache-2.0
"""An actor per rank on a Ray cluster, of one machine or several.

Ray places and watches the ranks and carries the calls, which are the same bytes as for `mp`. The
model must lie under the same path on every machine.
"""

import os
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from vllm import envs
from vllm.exceptions import ConfigError
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.engine.heartbeat import PROGRESS_FACTOR
from vllm.v1.engine.serialization import encode_config
from vllm.v1.executor.ray_utils import RayPlace, RayWorker, import_ray
from vllm.v1.executor.remote import WAIT_S, RemoteExecutor

logger = init_logger(__name__)

_PLACEMENT_TIMEOUT_S = 60.0
_PING_INTERVAL_S = 1.0


class RayDistributedExecutor(RemoteExecutor):
    """Books a place per rank, all or none, and starts the ranks there.

    Attributes:
        workers: handles of the actors, in the order of ranks.
    """

    workers: list[Any]

    def _init_executor(self) -> None:
        self._ray = import_ray()
        self.workers = []
        self._group: Any = None
        self._answers: dict[Any, int] = {}
        self._pings: dict[Any, int] = {}
        self._pinged_at = 0.0
        if not self._ray.is_initialized():
            self._ray.init()
        try:
            self._book(self.vllm_config.parallel_config.tensor_parallel_size)
            self._start(encode_config(self.vllm_config))
            self.collective_rpc("init_device")
            self.collective_rpc("load_model")
        except BaseException:
            self._end(0.0)
            raise

    def shutdown(self) -> None:
        """End the ranks; the cluster stays."""
        if self._failure is None:
            self._failure = "the engine is shut down"
        self._end(0.0)

    def _book(self, world_size: int) -> None:
        """Reserve a CPU or a GPU for each rank, close together, and start an actor on each."""
        resource = "CPU" if current_platform().is_cpu() else "GPU"
        util = self._ray.util
        self._group = util.placement_group([{resource: 1}] * world_size, strategy="PACK")
        if not self._group.wait(_PLACEMENT_TIMEOUT_S):
            raise ConfigError(
                f"tensor_parallel_size={world_size}: the Ray cluster has no {world_size} free "
                f"{resource}s ({self._ray.available_resources().get(resource, 0):g} are free); "
                "add machines or pass a smaller size"
            )
        actor = self._ray.remote(RayWorker)
        strategy = util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for index in range(world_size):
            options = {
                "num_cpus": int(resource == "CPU"),
                "num_gpus": int(resource == "GPU"),
                "scheduling_strategy": strategy(self._group, placement_group_bundle_index=index),
            }
            self.workers.append(actor.options(**options).remote())

    def _start(self, config: bytes) -> None:
        """Number the ranks, those of a machine in a row, and tell each its place."""
        nodes = self._ray.get([worker.node.remote() for worker in self.workers])
        ranks_on = Counter(node_id for node_id, _ in nodes)
        order = sorted(range(len(nodes)), key=lambda i: list(ranks_on).index(nodes[i][0]))
        self.workers[:] = [self.workers[i] for i in order]
        nodes = [nodes[i] for i in order]
        is_one_machine = len(ranks_on) == 1
        address = "127.0.0.1" if is_one_machine else nodes[0][1]
        port = self._ray.get(self.workers[0].free_port.remote())
        starts = []
        for rank, (worker, (node_id, _)) in enumerate(zip(self.workers, nodes, strict=True)):
            place = RayPlace(
                rank=rank,
                init_method=f"tcp://{address}:{port}",
                local_world_size=ranks_on[node_id],
                num_threads=os.environ.get("OMP_NUM_THREADS"),
                is_one_machine=is_one_machine,
            )
            starts.append(worker.start.remote(config, place))
        self._ray.get(starts)
        logger.info("%d ranks on %d machines of the Ray cluster", len(nodes), len(ranks_on))

    def _send(self, call: bytes) -> None:
        self._answers = {worker.call.remote(call): rank for rank, worker in enumerate(self.workers)}

    def _receive(self, ranks: Collection[int]) -> list[tuple[int, bytes]]:
        waiting = [ref for ref, rank in self._answers.items() if rank in ranks]
        ready, _ = self._ray.wait(waiting, timeout=WAIT_S)
        return [(self._answers[ref], self._fetch(ref)) for ref in ready]

    def _fetch(self, ref: Any) -> bytes:
        try:
            data: bytes = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            rank = self._answers[ref]
            self._die(f"rank {rank} ended unexpectedly ({type(error).__name__})")
        return data

    def _watch(self) -> None:
        """Nothing: Ray itself watches the actors, and `_receive` hears of an end."""

    def _check_alive(self) -> None:
        """Ping the ranks now and then; a slow answer is waited for by later calls, not here."""
        now = time.monotonic()
        if not self._pings and now - self._pinged_at >= _PING_INTERVAL_S:
            self._pings = {worker.ping.remote(): i for i, worker in enumerate(self.workers)}
            self._pinged_at = now
        if not self._pings:
            return
        ready, late = self._ray.wait(
            list(self._pings), num_returns=len(self._pings), timeout=WAIT_S
        )
        for ref in ready:
            rank = self._pings.pop(ref)
            try:
                self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                self._die(f"rank {rank} ended unexpectedly ({type(error).__name__})")
        if late and now - self._pinged_at > PROGRESS_FACTOR * envs.VLLM_ENGINE_HANG_TIMEOUT_S:
            self._die(f"ranks {sorted(self._pings.values())} do not answer")

    def _end(self, grace_s: float) -> None:
        del grace_s  # Ray ends actors at once
        workers, self.workers = self.workers, []
        group, self._group = self._group, None
        if not self._ray.is_initialized():
            return
        with suppress(self._ray.exceptions.RayError):
            for worker in workers:
                self._ray.kill(worker)
            if group is not None:
                self._ray.util.remove_placement_group(group)
