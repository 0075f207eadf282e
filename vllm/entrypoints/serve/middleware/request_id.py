# SPDX-License-Identifier: Apache-2.0
"""The request id: the client's X-Request-Id or a new one, in the answer and in the log.

Also the last resort: an error that nothing else handled becomes a plain 500 here.
"""

import re
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm.entrypoints.openai.errors import INTERNAL_MESSAGE, ApiError, error_response
from vllm.logger import init_logger

logger = init_logger(__name__)

_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIdMiddleware:
    """Gives every request an id as `scope["state"]["request_id"]` and a response header."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its id."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _VALID_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        has_started = False

        async def with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self.app(scope, receive, with_id)
        except Exception:
            logger.exception("request %s failed", request_id)
            if has_started:
                raise
            await error_response(ApiError(500, INTERNAL_MESSAGE))(scope, receive, with_id)
