# SPDX-License-Identifier: Apache-2.0
"""The engine core in a process of its own: `python -m vllm.v1.engine.core_proc FOLDER`.

The parent owns the folder (private, with the two sockets and the heartbeat) and writes the
configuration to standard input, which stays open for as long as the parent lives. One thread
does all the work: messages in, a step, outputs out. ZeroMQ moves the bytes in its own threads,
and one more thread says every second that the process lives, however long a step takes.
"""

import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import zmq

from vllm import envs
from vllm.exceptions import EngineDeadError, VLLMError
from vllm.logger import init_logger
from vllm.utils.child_process import read_first_line, watch_parent
from vllm.v1.engine.core import EngineCore, describe_failure
from vllm.v1.engine.heartbeat import Heartbeat
from vllm.v1.engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequestType,
    FinishReason,
    UtilityOutput,
)
from vllm.v1.engine.serialization import (
    CoreReady,
    decode_abort,
    decode_config,
    decode_request,
    decode_utility,
    encode,
)

logger = init_logger(__name__)

INPUT_SOCKET, OUTPUT_SOCKET, HEARTBEAT = "input.sock", "output.sock", "heartbeat"
_IDLE_POLL_MS = 250
_PULSE_INTERVAL_S = 1.0


class EngineCoreProc:
    """The loop around an `EngineCore`.

    Args:
        core: runs the steps.
        input_socket: requests, aborts and calls from the front end.
        output_socket: outputs and answers to it.
        heartbeat: told of each round.
    """

    def __init__(
        self,
        core: EngineCore,
        input_socket: "zmq.Socket[bytes]",
        output_socket: "zmq.Socket[bytes]",
        heartbeat: Heartbeat,
    ) -> None:
        self._core = core
        self._input = input_socket
        self._output = output_socket
        self._heartbeat = heartbeat
        self._is_stopping = False

    def run(self) -> None:
        """Serve until the front end asks to stop.

        Raises:
            EngineDeadError: the workers are lost, in a step or while there was nothing to do.
        """
        while not self._is_stopping:
            self._heartbeat.beat()
            if self._core.has_requests():
                self._receive(0)
            elif not self._receive(_IDLE_POLL_MS):
                self._core.check_health()  # a step would notice by itself
            if self._core.has_requests():
                self._send(self._core.step())

    def _receive(self, timeout_ms: int) -> bool:
        """Handle all messages that are there, waiting for the first; False if none came."""
        received = aborted = False
        while not self._is_stopping and self._input.poll(timeout_ms):
            kind, payload = self._input.recv_multipart()
            aborted |= self._handle(EngineCoreRequestType(kind), payload)
            received, timeout_ms = True, 0
        if aborted and not self._core.has_requests():
            # No step follows that would report the new state.
            self._send(EngineCoreOutputs(scheduler_stats=self._core.get_stats()))
        return received

    def _handle(self, kind: EngineCoreRequestType, payload: bytes) -> bool:
        """Act on one message; True if it was an abort."""
        if kind is EngineCoreRequestType.ADD:
            self._add(payload)
        elif kind is EngineCoreRequestType.ABORT:
            self._core.abort_requests(decode_abort(payload))
        elif kind is EngineCoreRequestType.UTILITY:
            self._answer(payload)
        else:
            self._is_stopping = True
        return kind is EngineCoreRequestType.ABORT

    def _add(self, payload: bytes) -> None:
        request = decode_request(payload)
        try:
            self._core.add_request(request)
        except VLLMError as error:
            # The front end has checked all a client can get wrong: say so and go on.
            logger.error("request %s is refused by the core: %s", request.request_id, error)
            refusal = EngineCoreOutput(
                request_id=request.request_id, finish_reason=FinishReason.ERROR, error=str(error)
            )
            self._send(EngineCoreOutputs(outputs=[refusal]))

    def _answer(self, payload: bytes) -> None:
        call = decode_utility(payload)
        answer = UtilityOutput(call_id=call.call_id)
        try:
            answer.result = self._core.call_utility(call.method, call.args)
            message = encode(EngineCoreOutputs(utility_output=answer))
        except Exception as error:
            if not isinstance(error, VLLMError):
                logger.exception("utility %s failed", call.method)
            answer.result = None
            answer.error_type, answer.error_message = describe_failure(error)
            message = encode(EngineCoreOutputs(utility_output=answer))
        self._output.send(message)

    def _send(self, outputs: EngineCoreOutputs) -> None:
        if outputs.outputs or outputs.scheduler_stats is not None:
            self._output.send(encode(outputs))


def _import_ahead() -> None:
    """Import what every start needs, while the parent still resolves the configuration."""
    import transformers.models.llama.configuration_llama  # noqa: F401 - brings what all share

    import vllm.model_executor.model_loader.build
    import vllm.model_executor.models.llama
    import vllm.v1.worker.worker  # noqa: F401


def _make_socket(context: "zmq.Context[Any]", kind: int, path: Path) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 2_000)
    socket.connect(f"ipc://{path}")
    return socket


def _pulse_interval_s() -> float:
    """Every second; more often where even that would look like a hang."""
    return max(0.05, min(_PULSE_INTERVAL_S, envs.VLLM_ENGINE_HANG_TIMEOUT_S / 4))


def main(folder: str) -> int:
    """Run the process; the exit status is 0 after an orderly stop."""
    # The parent decides when to stop; a signal to the whole group must not end a drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent_pid = os.getppid()
    _import_ahead()
    config_bytes = read_first_line()
    threading.Thread(target=watch_parent, args=(parent_pid, folder), daemon=True).start()
    context: zmq.Context[Any] = zmq.Context()
    output_socket = _make_socket(context, zmq.PUSH, Path(folder) / OUTPUT_SOCKET)
    try:
        config = decode_config(config_bytes)
        log_stats = not config.observability_config.disable_log_stats
        core = EngineCore(config, log_stats=log_stats)
    except Exception as error:
        logger.debug("start-up failed", exc_info=True)
        kind, message = describe_failure(error)
        if not isinstance(error, VLLMError):
            logger.exception("the engine core could not start")
        output_socket.send(encode(CoreReady(error_type=kind, error_message=message)))
        context.term()
        return 1
    input_socket = _make_socket(context, zmq.PULL, Path(folder) / INPUT_SOCKET)
    heartbeat = Heartbeat(Path(folder) / HEARTBEAT, create=False)
    heartbeat.beat()
    heartbeat.start_pulse(_pulse_interval_s())
    output_socket.send(encode(CoreReady(max_model_len=core.max_model_len)))
    # What start-up made stays: keep the collector from walking it in the middle of a step.
    gc.collect()
    gc.freeze()
    try:
        EngineCoreProc(core, input_socket, output_socket, heartbeat).run()
    except EngineDeadError as error:
        logger.error("the engine core ends: %s", error)
        return 1
    except Exception:
        logger.exception("the engine core died")
        return 1
    core.shutdown()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    # No interpreter teardown: it would join threads of libraries that may be in a kernel.
    os._exit(status)
