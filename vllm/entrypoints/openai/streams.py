# SPDX-License-Identifier: Apache-2.0
"""Running a request's work while its client stays, and sending it as server-sent events.

Owns the one clean-up path: a client that leaves, a server that stops and an error all end in
the work being cancelled and its generators closed, which aborts the engine's requests.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vllm.entrypoints.openai.errors import ServerShuttingDownError, describe
from vllm.logger import init_logger

logger = init_logger(__name__)

T = TypeVar("T")

DONE_EVENT = b"data: [DONE]\n\n"


class ClientGoneError(Exception):
    """The client closed its connection; nobody reads an answer."""


class InFlight:
    """Work in progress for clients, so that a stopping server can end it."""

    def __init__(self) -> None:
        self.stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: "asyncio.Task[Any]") -> None:
        """Remember `task` until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abort_all(self) -> None:
        """End everything in progress; each client is told that the server stops."""
        self.stopping = True
        for task in list(self._tasks):
            task.cancel()


async def run_for_client(work: Coroutine[Any, Any, T], receive: Receive, in_flight: InFlight) -> T:
    """Run `work` to its end, or cancel it when the client leaves.

    Raises:
        ClientGoneError: the client left; the work is cancelled and has cleaned up.
        ServerShuttingDownError: the server ended the work.
    """
    if in_flight.stopping:
        work.close()
        raise ServerShuttingDownError("the server is shutting down; try again later")
    task = asyncio.create_task(work)
    in_flight.add(task)
    gone = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            raise ClientGoneError
        if task.cancelled():
            raise ServerShuttingDownError("the server is shutting down; the request was ended")
        return task.result()
    finally:
        for pending in (task, gone):
            if not pending.done():
                pending.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merge_generators(
    generators: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all generators as they come, each with its generator's position.

    The first error ends all of them.
    """
    if len(generators) == 1:
        async with contextlib.aclosing(generators[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(maxsize=256)

    async def pump(index: int, generator: AsyncGenerator[T, None]) -> None:
        try:
            async with contextlib.aclosing(generator) as source:
                async for item in source:
                    await queue.put((index, item))
        except Exception as error:  # handed to the reader, who raises it
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(pump(i, g)) for i, g in enumerate(generators)]
    running = len(tasks)
    try:
        while running:
            event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                running -= 1
                continue
            yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sse_event(json_text: str) -> bytes:
    """One server-sent event."""
    return f"data: {json_text}\n\n".encode()


class EventStreamResponse(Response):
    """Server-sent events whose first one decides the status.

    An error before the first event is raised to the error handlers and becomes a proper status;
    an error after it is sent as an event, and the stream ends without `[DONE]`.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], in_flight: InFlight) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self._events = events
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client leaves."""
        started = False

        async def start() -> None:
            nonlocal started
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            started = True

        async def body(data: bytes, more: bool) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            await run_for_client(self._pump(start, body), receive, self._in_flight)
        except ClientGoneError:
            logger.debug("client left a stream")
            return
        except Exception as error:
            if not started:
                raise
            await body(sse_event(describe(error).render().decode()), False)
            return
        await body(DONE_EVENT, False)

    async def _pump(
        self,
        start: Callable[[], Awaitable[None]],
        body: Callable[[bytes, bool], Awaitable[None]],
    ) -> None:
        is_first = True
        async with contextlib.aclosing(self._events) as events:
            async for event in events:
                if is_first:
                    await start()
                    is_first = False
                await body(event, True)


async def respond(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Run a non-streaming handler for as long as its client stays."""
    try:
        return await run_for_client(work, request.receive, request.app.state.server.in_flight)
    except ClientGoneError:
        logger.debug("client left before its answer")
        return Response(status_code=499)
