# SPDX-License-Identifier: Apache-2.0
"""A rank in a process of its own: `python -m vllm.v1.executor.worker_main FOLDER RANK`.

The parent owns the folder (private, with a socket and a heartbeat per rank, and the file through
which the ranks find each other) and writes the configuration to standard input, which stays open
for as long as the parent lives. One thread answers calls, in order; another says every second
that the process lives, however long a call takes.
"""

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import zmq

from vllm import envs
from vllm.logger import init_logger
from vllm.utils.child_process import read_first_line, watch_parent
from vllm.v1.engine.heartbeat import Heartbeat
from vllm.v1.engine.serialization import decode_config
from vllm.v1.executor.messages import SHUTDOWN, method_of
from vllm.v1.executor.remote import answer_call
from vllm.v1.executor.worker_process import heartbeat_name, socket_name
from vllm.v1.worker.worker import Worker

logger = init_logger(__name__)

RENDEZVOUS = "rendezvous"
_LAST_CALL_OF_START = "initialize_from_config"


def serve(worker: Worker, socket: "zmq.Socket[bytes]", rank: int) -> None:
    """Answer calls, in order, until told to stop."""
    while True:
        data = socket.recv()
        method = method_of(data)
        if method == SHUTDOWN:
            return
        socket.send(answer_call(worker.call, rank, data))
        if method == _LAST_CALL_OF_START:
            # What start-up made stays: keep the collector from walking it within a step.
            gc.collect()
            gc.freeze()


def _pulse(heartbeat: Heartbeat, interval_s: float) -> None:
    """Both stamps: how long a step may take is the parent's to judge, who sent it."""
    heartbeat.start_pulse(interval_s)
    while True:
        heartbeat.beat()
        time.sleep(interval_s)


def main(folder: str, rank: int) -> int:
    """Run the process; the exit status is 0 after an orderly stop."""
    # The parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent_pid = os.getppid()
    config = decode_config(read_first_line())
    threading.Thread(target=watch_parent, args=(parent_pid, folder), daemon=True).start()
    heartbeat = Heartbeat(Path(folder) / heartbeat_name(rank), create=False)
    interval_s = max(0.05, min(1.0, envs.VLLM_ENGINE_HANG_TIMEOUT_S / 4))
    threading.Thread(target=_pulse, args=(heartbeat, interval_s), daemon=True).start()
    context: zmq.Context[Any] = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(f"ipc://{Path(folder) / socket_name(rank)}")
    worker = Worker(
        config,
        local_rank=rank,
        rank=rank,
        distributed_init_method=f"file://{Path(folder) / RENDEZVOUS}",
        local_world_size=config.parallel_config.tensor_parallel_size,
    )
    try:
        serve(worker, socket, rank)
    except Exception:
        logger.exception("rank %d died", rank)
        return 1
    worker.shutdown()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1], int(sys.argv[2]))
    sys.stderr.flush()
    # No interpreter teardown: it would join threads of libraries that may be in a kernel.
    os._exit(status)
