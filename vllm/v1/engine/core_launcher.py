# SPDX-License-Identifier: Apache-2.0
"""The parent's hold on the engine core's process: start, readiness, life and end.

Owns the private folder with the sockets; knows nothing of requests.
"""

import shutil
import subprocess
import sys
import time
import weakref
from typing import Any

import zmq

from vllm.exceptions import EngineDeadError
from vllm.logger import init_logger
from vllm.utils.network_utils import make_socket_folder
from vllm.v1.engine.core_proc import HEARTBEAT, INPUT_SOCKET, OUTPUT_SOCKET
from vllm.v1.engine.heartbeat import PROGRESS_FACTOR, Heartbeat
from vllm.v1.engine.serialization import CoreReady, decode_ready
from vllm.v1.executor.messages import rebuild_error

logger = init_logger(__name__)

_CORE_MODULE = "vllm.v1.engine.core_proc"
_POLL_MS = 100
_CONNECT_TIMEOUT_MS = 10_000


class CoreProcess:
    """A running core process.

    The process starts at once and imports its libraries while the parent still resolves the
    configuration; `send_config` sets it to work, `wait_ready` waits for it.

    Args:
        module: what the process runs; tests put a stand-in here.

    Attributes:
        input_socket: to the core.
        output_socket: from the core.
    """

    def __init__(self, module: str = _CORE_MODULE) -> None:
        self._folder = make_socket_folder()
        # Also when nobody calls `stop`: the process then ends by itself, see `watch_parent`.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, True)
        self._context: zmq.Context[Any] = zmq.Context()
        self.input_socket = self._bind(zmq.PUSH, INPUT_SOCKET)
        self.output_socket = self._bind(zmq.PULL, OUTPUT_SOCKET)
        self._heartbeat = Heartbeat(self._folder / HEARTBEAT, create=True)
        self._is_closed = False
        # In a session of its own, so that Ctrl-C reaches the parent alone, which then drains.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(self._folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send_config(self, config: bytes) -> None:
        """Give the process its configuration, one line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(config + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def wait_ready(self, timeout_s: float | None = None) -> CoreReady:
        """Wait until the core has started.

        Raises:
            Exception: what stopped it, as the same error with the same message.
            EngineDeadError: the process ended without a word, or `timeout_s` has passed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.output_socket.poll(_POLL_MS):
            if self._process.poll() is not None and not self.output_socket.poll(_POLL_MS):
                raise self._death()
            if deadline is not None and time.monotonic() > deadline:
                raise EngineDeadError(f"the engine did not start within {timeout_s:g} s")
        ready = decode_ready(self.output_socket.recv())
        if ready.error_type is not None:
            raise rebuild_error(ready.error_type, ready.error_message)
        # The other socket has its own connection, which may still be on its way.
        if not self.input_socket.poll(_CONNECT_TIMEOUT_MS, zmq.POLLOUT):
            raise EngineDeadError("the engine process did not connect")
        return ready

    def wait_exit(self) -> int:
        """Block until the process has ended; its exit status."""
        return self._process.wait()

    def check_alive(self, hang_timeout_s: float) -> None:
        """Raise `EngineDeadError` if the process has ended, or hangs by `Heartbeat`."""
        if self._process.poll() is not None:
            raise self._death()
        silence_s = self._heartbeat.silence_s(hang_timeout_s)
        if silence_s is not None:
            raise EngineDeadError(
                f"the engine has not answered for {silence_s:.0f} s (limit {hang_timeout_s:g} s, "
                f"{PROGRESS_FACTOR} times that within a step)"
            )

    def stop(self, grace_s: float) -> None:
        """End the process, by force after `grace_s`, and remove what it left. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self.input_socket.close(0)
        self.output_socket.close(0)
        self._context.term()
        self._heartbeat.close()
        self._remove_folder()

    def _bind(self, kind: int, name: str) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{self._folder / name}")
        return socket

    def _death(self) -> EngineDeadError:
        status = self._process.poll()
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        return EngineDeadError(f"the engine process ended unexpectedly ({how}); see its log")
