# SPDX-License-Identifier: Apache-2.0
"""uvicorn's HTTP/1.1 protocol with limits on slow clients and large headers.

Two times, each closing the connection: a request (headers and body) must have arrived whole
within `receive_timeout_s` of the connection or of its first byte, and a client that reads
nothing of its answer for `send_timeout_s` is taken for gone. Headers over the size limit get 431.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vllm.entrypoints.openai.errors import ApiError

REFUSAL_LINGER_S = 1.0


class BoundedConnection(h11.Connection):
    """h11's server side, whose size limit also holds for headers that arrive in one piece.

    h11 itself looks at the size of what is still incomplete only.

    Args:
        max_header_bytes: of request line and headers, and of trailers.

    Attributes:
        refusal_status: what the protocol error that was raised last should be answered with.
    """

    def __init__(self, max_header_bytes: int) -> None:
        super().__init__(h11.SERVER, max_header_bytes)
        self.max_header_bytes = max_header_bytes
        self.refusal_status = 400

    def next_event(self) -> Any:
        """The next event.

        Raises:
            h11.RemoteProtocolError: what came is no HTTP, or over the limit.
        """
        is_request = self.their_state is h11.IDLE
        num_before = len(self.trailing_data[0]) if is_request else 0
        try:
            event = super().next_event()
            size = 0
            if isinstance(event, h11.Request):
                size = num_before - len(self.trailing_data[0])
            elif isinstance(event, h11.EndOfMessage):
                size = sum(len(name) + len(value) + 4 for name, value in event.headers)
            if size > self.max_header_bytes:
                raise h11.RemoteProtocolError("headers too large", error_status_hint=431)
        except h11.RemoteProtocolError as error:
            self.refusal_status = error.error_status_hint
            raise
        return event


class TimedH11Protocol(H11Protocol):
    """HTTP/1.1 over h11 with limits; subclass with other numbers through `with_limits`."""

    receive_timeout_s = 60.0
    send_timeout_s = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        max_header_bytes = self.config.h11_max_incomplete_event_size
        assert max_header_bytes is not None, "our server's configuration always has a limit"
        self.conn: BoundedConnection = BoundedConnection(max_header_bytes)
        self._receive_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    @classmethod
    def with_limits(
        cls, *, receive_timeout_s: float, send_timeout_s: float
    ) -> "type[TimedH11Protocol]":
        """A subclass with these limits, for uvicorn, which builds protocols itself."""
        limits = {"receive_timeout_s": receive_timeout_s, "send_timeout_s": send_timeout_s}
        return type("LimitedH11Protocol", (cls,), limits)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection must bring a request in time."""
        super().connection_made(transport)
        self._start_receive_timer()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the clock runs while a request is incomplete."""
        if self._is_refused:
            return
        super().data_received(data)
        is_idle = self.cycle is None or self.cycle.response_complete
        is_receiving = self.conn.their_state in (h11.SEND_BODY, h11.IDLE)
        if self.conn.their_state is h11.SEND_BODY or (is_receiving and is_idle):
            self._start_receive_timer()
        else:
            self._stop_receive_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop_receive_timer()
        self._stop_send_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has headers over the limit, in OpenAI's shape."""
        status = HTTPStatus(self.conn.refusal_status)
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            msg = (
                f"request line and headers are larger than {self.conn.max_header_bytes} bytes, "
                "this server's limit; send less"
            )
        body = ApiError(status, msg).render()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._is_refused = True
        self._stop_receive_timer()
        if self.transport.is_closing():
            return
        self.transport.write(head.encode() + body)
        # Closing now would reset the connection while the client still sends, and with it the
        # answer; so only our side is closed, and the rest is read and dropped for a moment.
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(REFUSAL_LINGER_S, self._abort)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self.send_timeout_s, self._abort)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._stop_send_timer()
        super().resume_writing()

    def _start_receive_timer(self) -> None:
        if self._receive_timer is None:
            self._receive_timer = self.loop.call_later(self.receive_timeout_s, self._abort)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _abort(self) -> None:
        # Not close(): that would wait for a client that does not read.
        self.transport.abort()
