# SPDX-License-Identifier: Apache-2.0
"""The parent's hold on one rank's process: start, calls, life and end. Knows no model."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import zmq

from vllm import envs
from vllm.distributed.utils import threads_per_rank
from vllm.utils.network_utils import loopback_interface
from vllm.v1.engine.heartbeat import Heartbeat

_WORKER_MODULE = "vllm.v1.executor.worker_main"


def socket_name(rank: int) -> str:
    """File name of a rank's socket."""
    return f"rank{rank}.sock"


def heartbeat_name(rank: int) -> str:
    """File name of a rank's heartbeat."""
    return f"rank{rank}.heartbeat"


class WorkerProcess:
    """A running rank.

    Args:
        folder: private, with the sockets; the parent's.
        context: of the parent's sockets.
        rank: this rank.
        world_size: ranks, all on this machine.
        config: one line, see `serialization.encode_config`.

    Attributes:
        socket: to the rank.
    """

    def __init__(
        self, folder: Path, context: "zmq.Context[Any]", rank: int, world_size: int, config: bytes
    ) -> None:
        self.rank = rank
        self.socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self.socket.setsockopt(option, 0)
        self.socket.bind(f"ipc://{folder / socket_name(rank)}")
        self._heartbeat = Heartbeat(folder / heartbeat_name(rank), create=True)
        self._has_answered = False
        # In a session of its own, so that Ctrl-C reaches the parent alone.
        self._process = subprocess.Popen(
            [sys.executable, "-m", _WORKER_MODULE, str(folder), str(rank)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=_environment(rank, world_size),
        )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(config + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died, which `death` says

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, data: bytes) -> None:
        """Send a call; never blocks, as the queue is unbounded."""
        self.socket.send(data)

    def receive(self) -> bytes:
        """The next answer, which must be there."""
        self._has_answered = True
        return self.socket.recv()

    def death(self) -> str | None:
        """How this rank has died or hangs, in words; None if it lives."""
        status = self._process.poll()
        if status is not None:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            return f"rank {self.rank} ended unexpectedly ({how}); see the log"
        # Until the first answer it may still be importing, with no pulse to feel.
        limit_s = envs.VLLM_ENGINE_HANG_TIMEOUT_S
        silence_s = self._heartbeat.silence_s(limit_s) if self._has_answered else None
        if silence_s is not None:
            return f"rank {self.rank} hangs: no sign of life for {silence_s:.0f} s"
        return None

    def stop(self, grace_s: float) -> None:
        """End the process, by force after `grace_s`."""
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self.socket.close(0)
        self._heartbeat.close()


def _environment(rank: int, world_size: int) -> dict[str, str]:
    """The parent's, with this rank's share of the machine; what the user has set stays."""
    environment = dict(os.environ)
    environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    environment.setdefault("OMP_NUM_THREADS", str(threads_per_rank(world_size)))
    # All ranks are here: gloo need not ask what the host's name resolves to, nor listen outside.
    environment.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    if rank > 0:
        environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # rank 0 says it for all
    return environment
