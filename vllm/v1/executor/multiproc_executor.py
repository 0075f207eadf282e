# SPDX-License-Identifier: Apache-2.0
"""A process per rank on this machine, spoken to over Unix sockets."""

import os
import shutil
import time
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any

import zmq

from vllm.utils.network_utils import make_socket_folder
from vllm.v1.engine.serialization import encode_config
from vllm.v1.executor.messages import SHUTDOWN, encode_call
from vllm.v1.executor.remote import WAIT_S, RemoteExecutor
from vllm.v1.executor.worker_process import WorkerProcess

_SHUTDOWN_GRACE_S = 3.0


class MultiprocExecutor(RemoteExecutor):
    """Starts the ranks, and ends them.

    Attributes:
        workers: the ranks, in order.
    """

    workers: list[WorkerProcess]

    def _init_executor(self) -> None:
        world_size = self.vllm_config.parallel_config.tensor_parallel_size
        config = encode_config(self.vllm_config)
        self._folder = make_socket_folder()
        self._context: zmq.Context[Any] = zmq.Context()
        self.workers = []
        # Also when nobody calls `shutdown`.
        self._at_exit = weakref.finalize(
            self, _stop_all, 0.0, self.workers, self._context, self._folder, os.getpid()
        )
        try:
            for rank in range(world_size):
                self.workers.append(
                    WorkerProcess(self._folder, self._context, rank, world_size, config)
                )
            self.collective_rpc("init_device")
            self.collective_rpc("load_model")
        except BaseException:
            self._end(0.0)
            raise

    def shutdown(self) -> None:
        """End the ranks."""
        if self._failure is None:
            self._failure = "the engine is shut down"
            self._send(encode_call(0, SHUTDOWN, (), {}))
        self._end(_SHUTDOWN_GRACE_S)

    def _send(self, call: bytes) -> None:
        for worker in self.workers:
            worker.socket.send(call)  # never blocks: the queue is unbounded

    def _receive(self, ranks: Collection[int]) -> list[tuple[int, bytes]]:
        poller = zmq.Poller()
        for rank in ranks:
            poller.register(self.workers[rank].socket, zmq.POLLIN)
        ready = dict(poller.poll(int(WAIT_S * 1000)))
        return [
            (rank, worker.receive())
            for rank, worker in enumerate(self.workers)
            if worker.socket in ready
        ]

    def _watch(self) -> None:
        for worker in self.workers:
            death = worker.death()
            if death is not None:
                self._die(death)

    def _check_alive(self) -> None:
        self._watch()

    def _end(self, grace_s: float) -> None:
        if self._at_exit.detach() is not None:
            _stop_all(grace_s, self.workers, self._context, self._folder, os.getpid())


def _stop_all(
    grace_s: float,
    workers: list[WorkerProcess],
    context: "zmq.Context[Any]",
    folder: Path,
    owner_pid: int,
) -> None:
    """End the processes and remove the folder; not in a process that was forked off the owner."""
    if os.getpid() != owner_pid:
        return
    deadline = time.monotonic() + grace_s
    for worker in workers:
        worker.stop(max(0.0, deadline - time.monotonic()))
    context.term()
    shutil.rmtree(folder, ignore_errors=True)
