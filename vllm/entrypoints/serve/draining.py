# SPDX-License-Identifier: Apache-2.0
"""How the HTTP server stops: no new work, time for the running, an answer for the rest.

Knows connections and running requests, not the engine.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn

from vllm.entrypoints.openai.streams import InFlight
from vllm.entrypoints.serve.launcher import SIGNALS
from vllm.logger import init_logger

logger = init_logger(__name__)

ABORT_GRACE_S = 2.0


class DrainingServer(uvicorn.Server):
    """uvicorn with its own signals and its own end."""

    def __init__(
        self, config: uvicorn.Config, in_flight: InFlight, shutdown_timeout_s: float
    ) -> None:
        super().__init__(config)
        self._in_flight = in_flight
        self._shutdown_timeout_s = shutdown_timeout_s

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; unlike uvicorn, do not raise them again after."""
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: abort what still runs."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let requests finish, abort the rest."""
        for listener in self.servers:
            listener.close()
        if self._in_flight:
            logger.info(
                "stopping: %d requests get up to %g s to finish",
                len(self._in_flight),
                self._shutdown_timeout_s,
            )
        self._close_idle_connections()
        await self._wait_until_empty(self._shutdown_timeout_s, until_forced=True)
        if self._in_flight:
            logger.warning("aborting %d requests", len(self._in_flight))
        self._in_flight.abort_all()
        await self._wait_until_empty(ABORT_GRACE_S, until_forced=False)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        logger.info("stopped")

    def _close_idle_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.shutdown()

    async def _wait_until_empty(self, timeout_s: float, *, until_forced: bool) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        state = self.server_state
        while (state.connections or state.tasks) and loop.time() < deadline:
            if until_forced and self.force_exit:
                return
            await asyncio.sleep(0.02)
