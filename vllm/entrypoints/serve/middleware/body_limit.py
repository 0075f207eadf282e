# SPDX-License-Identifier: Apache-2.0
"""The size limit of request bodies, counted as they stream in."""

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm.entrypoints.openai.errors import ApiError, error_response


class BodyLimitMiddleware:
    """Refuses bodies over `max_bytes`: by their announced length, else when they pass it."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 413."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced[:18]) > self.max_bytes:
            await error_response(ApiError(413, self._message()))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise HTTPException(413, self._message())
            return message

        await self.app(scope, counted, send)

    def _message(self) -> str:
        return f"the body is larger than {self.max_bytes} bytes, this server's limit; send less"
