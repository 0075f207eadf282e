# SPDX-License-Identifier: Apache-2.0
"""How a front end speaks to the core: in its own process, or in a child over Unix sockets.

Owns the calls in flight; knows nothing of text.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import zmq
import zmq.asyncio

from vllm import envs
from vllm.config import VllmConfig
from vllm.exceptions import EngineDeadError
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.core_launcher import CoreProcess
from vllm.v1.engine.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    UtilityOutput,
)
from vllm.v1.engine.serialization import UtilityCall, decode_outputs, encode, encode_config
from vllm.v1.executor.messages import rebuild_error


class InprocClient:
    """The core in the calling process: each `get_output` is one step.

    Args:
        vllm_config: the resolved configuration.
        log_stats: attach statistics to outputs.

    Attributes:
        engine_core: the core itself.
    """

    def __init__(self, vllm_config: VllmConfig, *, log_stats: bool) -> None:
        self.engine_core = EngineCore(vllm_config, log_stats=log_stats)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request."""
        self.engine_core.add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ids are skipped."""
        if request_ids:
            self.engine_core.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        """Run a step, if there is something to do."""
        if not self.engine_core.has_requests():
            return EngineCoreOutputs()
        return self.engine_core.step()

    def shutdown(self) -> None:
        """Release what the core holds."""
        self.engine_core.shutdown()


class AsyncMPClient:
    """The core in a child process, for one event loop.

    Args:
        process: started, not yet configured.
        vllm_config: sent to the process.

    Raises:
        EngineDeadError: the process has ended already.
    """

    def __init__(self, process: CoreProcess, vllm_config: VllmConfig) -> None:
        self._process = process
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._num_calls = 0
        self._output: zmq.asyncio.Socket | None = None
        process.send_config(encode_config(vllm_config))

    def wait_ready(self) -> int:
        """Wait until the core has started; the length it settled on.

        Raises:
            Exception: the core could not start.
        """
        return self._process.wait_ready().max_model_len

    @property
    def pid(self) -> int:
        """Process id of the core."""
        return self._process.pid

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Have `callback` run in the running loop when the process has ended."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            self._process.wait_exit()
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(callback)

        threading.Thread(target=wait, name="engine-core-exit", daemon=True).start()

    def add_request(self, request: EngineCoreRequest) -> None:
        """Send a request."""
        self._send(EngineCoreRequestType.ADD, encode(request))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """Send an abort."""
        if request_ids:
            self._send(EngineCoreRequestType.ABORT, encode(list(request_ids)))

    async def get_output(self) -> EngineCoreOutputs:
        """The next outputs; answers to utility calls go to their callers."""
        if self._output is None:
            self._output = zmq.asyncio.Socket(self._process.output_socket)
        while True:
            outputs = decode_outputs(await self._output.recv())
            if outputs.utility_output is None:
                return outputs
            self._resolve(outputs.utility_output)

    async def call_utility(self, method: str, *args: Any) -> Any:
        """Call one of the core's utilities by name.

        Raises:
            VLLMError: the core refused or failed, with its message.
            EngineDeadError: the core died meanwhile.
        """
        self._num_calls += 1
        call = UtilityCall(self._num_calls, method, list(args))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call.call_id] = future
        try:
            self._send(EngineCoreRequestType.UTILITY, encode(call))
            return await future
        finally:
            self._calls.pop(call.call_id, None)

    def check_health(self) -> None:
        """Raise `EngineDeadError` if the core has died or hangs."""
        self._process.check_alive(envs.VLLM_ENGINE_HANG_TIMEOUT_S)

    def fail_calls(self, error: Exception) -> None:
        """End every call that waits for an answer."""
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)

    def shutdown(self, grace_s: float = 3.0) -> None:
        """Stop the process, by force after `grace_s`."""
        try:
            self._send(EngineCoreRequestType.SHUTDOWN, b"")
        except (zmq.ZMQError, EngineDeadError):
            grace_s = 0.0  # it cannot be asked any more
        self._process.stop(grace_s)

    def _send(self, kind: EngineCoreRequestType, payload: bytes) -> None:
        try:
            # The queue is unbounded: with a peer this never blocks.
            self._process.input_socket.send_multipart((kind.value, payload), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineDeadError("the engine process is not connected any more") from None

    def _resolve(self, answer: UtilityOutput) -> None:
        future = self._calls.get(answer.call_id)
        if future is None or future.done():
            return
        if answer.error_type is None:
            future.set_result(answer.result)
        else:
            future.set_exception(rebuild_error(answer.error_type, answer.error_message or ""))
