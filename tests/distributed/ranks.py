# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, each a process forked off one that has imported torch."""

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from vllm.utils.network_utils import get_open_port, loopback_interface

_TIMEOUT_S = 120
_PRELOAD = [
    "torch",
    "transformers.models.llama.configuration_llama",
    "transformers.models.qwen3.configuration_qwen3",
    "tests.distributed.on_ranks",
]


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """What `function(*args)` returns on each rank; the ranks meet through the environment.

    Args:
        function: of a module that can be imported, so that a fresh process finds it.
    """
    # Plainly pickled: multiprocessing itself would pass tensors as files of a process that ends.
    job = pickle.dumps((function, args))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    port = get_open_port()
    ranks = []
    for rank in range(world_size):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=_run, args=(job, rank, world_size, port, sender), daemon=True
        )
        process.start()
        sender.close()
        ranks.append((process, receiver))
    try:
        return [_result(rank, receiver) for rank, (_, receiver) in enumerate(ranks)]
    finally:
        for process, receiver in ranks:
            receiver.close()
            process.kill()
            process.join()
            process.close()


def _result(rank: int, receiver: Connection) -> Any:
    assert receiver.poll(_TIMEOUT_S), f"rank {rank} has not answered"
    try:
        ok, value = pickle.loads(receiver.recv_bytes())
    except EOFError:
        raise AssertionError(f"rank {rank} died") from None
    assert ok, f"rank {rank}: {value}"
    return value


def _run(job: bytes, rank: int, world_size: int, port: int, sender: Connection) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "OMP_NUM_THREADS": "1",
    }
    import torch

    torch.set_num_threads(1)
    try:
        function, args = pickle.loads(job)
        answer = (True, function(*args))
    except BaseException:
        answer = (False, traceback.format_exc())
    sender.send_bytes(pickle.dumps(answer))
