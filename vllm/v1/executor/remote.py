# SPDX-License-Identifier: Apache-2.0
"""What executors with workers in other processes have in common: calls as bytes, and what it
means when ranks fail.

1. A call goes to every rank, as the same bytes, and every rank answers it; a step's results come
   from rank 0, they are the same on all.
2. Ranks that all fail in a call have failed together and can go on.
3. When in a step some fail and others do not, or a rank dies or hangs, their states have parted:
   all are ended, and this and every later call raises `EngineDeadError`.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from vllm import envs
from vllm.exceptions import EngineDeadError, VLLMError
from vllm.logger import init_logger
from vllm.v1.engine.heartbeat import PROGRESS_FACTOR
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.messages import (
    STEP,
    WorkerReply,
    decode_call,
    decode_reply,
    decode_result,
    encode_call,
    encode_error,
    encode_result,
    rebuild_error,
)

logger = init_logger(__name__)

WAIT_S = 0.1
"""How long one look for answers waits before the ranks' health is looked at."""
_AGREEMENT_GRACE_S = 5.0
"""How long after one rank's failure the others may take to fail too."""


class RemoteExecutor(Executor):
    """Speaks to the ranks in bytes; subclasses carry them.

    Attributes:
        workers: what the subclass knows of each rank, in order.
    """

    workers: list[Any]
    # Class attributes: `Executor.__init__` is what starts the ranks.
    _failure: str | None = None
    _num_calls = 0

    @abstractmethod
    def _send(self, call: bytes) -> None:
        """Send a call to every rank, without waiting."""

    @abstractmethod
    def _receive(self, ranks: Collection[int]) -> list[tuple[int, bytes]]:
        """Answers of some of `ranks`, waiting up to `WAIT_S` for the first."""

    @abstractmethod
    def _watch(self) -> None:
        """Call `_die` if a rank that is to answer has died or hangs."""

    @abstractmethod
    def _check_alive(self) -> None:
        """Call `_die` if a rank that is idle has died or hangs."""

    @abstractmethod
    def _end(self, grace_s: float) -> None:
        """End all ranks, by force after `grace_s`. Idempotent."""

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call on every rank; arguments and results are plain data.

        Raises:
            VLLMValidationError: a function, or something that is no plain data.
            EngineDeadError: a rank has died or hangs; all are ended.
            TimeoutError: not all have answered within `timeout`.
        """
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        self._num_calls += 1
        call = encode_call(self._num_calls, method, args, kwargs or {})
        assert isinstance(method, str), "encode_call refuses functions"
        try:
            self._send(call)
        except BaseException:
            self._lose("a call was broken off before every rank had it")
            raise
        replies = self._gather(method, timeout)
        errors = [reply for reply in replies if reply.error_type is not None]
        if errors and method == STEP and len(errors) < len(replies):
            self._die(f"some ranks failed in a step, others did not: {errors[0].error_message}")
        if errors:
            raise rebuild_error(errors[0].error_type, errors[0].error_message)
        return [decode_result(reply, method) for reply in replies]

    def check_health(self) -> None:
        """Raise `EngineDeadError` if a rank has died or hangs."""
        if self._failure is not None:
            raise EngineDeadError(self._failure)
        self._check_alive()

    def _gather(self, method: str, timeout: float | None) -> list[WorkerReply]:
        """Every rank's answer to the call that was sent last."""
        replies: dict[int, WorkerReply] = {}
        missing = set(range(len(self.workers)))
        started = time.monotonic()
        error: WorkerReply | None = None
        error_at = 0.0
        while missing:
            arrived = self._receive(missing)
            for rank, data in arrived:
                reply = decode_reply(data)
                if reply.call_id != self._num_calls:
                    continue  # late: the call it answers was given up
                replies[rank] = reply
                missing.remove(rank)
                if reply.error_type is not None and error is None:
                    error, error_at = reply, time.monotonic()
            if arrived:
                continue
            self._watch()
            now = time.monotonic()
            if error is not None and now - error_at > _AGREEMENT_GRACE_S:
                self._give_up(method, missing, error)
            if timeout is not None and now - started > timeout:
                raise TimeoutError(f"{method}: no answer from all ranks within {timeout:g} s")
            limit_s = PROGRESS_FACTOR * envs.VLLM_ENGINE_HANG_TIMEOUT_S
            if method == STEP and now - started > limit_s:
                self._die(f"ranks {sorted(missing)} have not ended a step in {limit_s:.0f} s")
        return [replies[rank] for rank in range(len(self.workers))]

    def _give_up(self, method: str, missing: Collection[int], error: WorkerReply) -> NoReturn:
        """Some failed, and the missing ones wait for them without end."""
        if method != STEP:
            raise rebuild_error(error.error_type, error.error_message)
        self._die(f"ranks {sorted(missing)} wait for one that failed: {error.error_message}")

    def _die(self, reason: str) -> NoReturn:
        self._lose(reason)
        raise EngineDeadError(reason)

    def _lose(self, reason: str) -> None:
        logger.error("%s; all ranks are ended", reason)
        self._failure = reason
        self._end(0.0)


def answer_call(call: Callable[..., Any], rank: int, data: bytes) -> bytes:
    """What a rank answers to a call.

    Args:
        call: `Worker.call`.
        rank: only rank 0 sends a step's results.
    """
    call_id, method, args, kwargs = decode_call(data)
    try:
        result = call(method, *args, **kwargs)
        return encode_result(call_id, method, None if method == STEP and rank > 0 else result)
    except Exception as error:
        if not isinstance(error, VLLMError):
            logger.exception("rank %d: %s failed", rank, method)
        return encode_error(call_id, error)
