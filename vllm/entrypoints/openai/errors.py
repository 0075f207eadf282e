# SPDX-License-Identifier: Apache-2.0
"""Errors become responses here and nowhere else, in OpenAI's shape.

A client's fault is told with the field's name; a fault of the server is told without detail,
which goes to the log under the request id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from vllm.exceptions import (
    EngineDeadError,
    EngineOverloadedError,
    ModelNotFoundError,
    RequestFailedError,
    VLLMError,
    VLLMValidationError,
)
from vllm.logger import init_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request, Response

logger = init_logger(__name__)

INTERNAL_MESSAGE = "internal error; the server's log says more under this request's X-Request-Id"
MAX_MESSAGE_CHARS = 2_000

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    431: "RequestTooLargeError",
    503: "ServiceUnavailableError",
}


class ServerShuttingDownError(EngineDeadError):
    """The server is going down and has ended this request (HTTP 503)."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """One error as a client sees it."""

    status: int
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body, OpenAI's shape."""
        message = self.message
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[:MAX_MESSAGE_CHARS] + " ..."
        kind = _TYPES.get(self.status)
        kind = kind or ("InternalServerError" if self.status >= 500 else "InvalidRequestError")
        return {
            "error": {"message": message, "type": kind, "param": self.param, "code": self.status}
        }

    def render(self) -> bytes:
        """`body` as JSON text."""
        return json.dumps(self.body).encode()


def describe(error: BaseException) -> ApiError:
    """Say what `error` means to the client; log it if the fault is the server's."""
    match error:
        case ModelNotFoundError():
            return ApiError(404, str(error), error.parameter or "model")
        case VLLMValidationError():
            return ApiError(400, str(error), error.parameter)
        case EngineOverloadedError():
            return ApiError(503, str(error), headers={"Retry-After": str(error.retry_after_s)})
        case ServerShuttingDownError():
            return ApiError(503, str(error), headers={"Retry-After": "5"})
        case EngineDeadError():
            logger.error("request refused: %s", error)
            return ApiError(503, "the engine is not running; the server's log says why")
        case RequestFailedError():
            logger.error("request failed: %s", error)
            return ApiError(500, str(error))
    logger.error("request failed", exc_info=error)
    return ApiError(500, INTERNAL_MESSAGE)


def describe_invalid_body(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Name the first field that is wrong, out of a pydantic error list."""
    first = errors[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, VLLMValidationError):
        return describe(cause)
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {cause} at character {where[-1]}")
    if not where:
        return ApiError(400, f"the body is not a JSON object: {first['msg']}")
    name = where[0]
    if first["type"] == "extra_forbidden":
        path = ".".join(where)
        return ApiError(400, f"{path}: this endpoint has no such field; leave it out", name)
    if first["type"] == "missing":
        return ApiError(400, f"{'.'.join(where)}: this field is required", name)
    return ApiError(400, f"{'.'.join(where)}: {first['msg']}", name)


def error_response(error: ApiError) -> Response:
    """The HTTP response for `error`."""
    from fastapi import Response

    return Response(
        error.render(),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def install_error_handlers(app: FastAPI) -> None:
    """Make every typed error, wrong body and unknown path answer in OpenAI's shape."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    async def on_typed(request: Request, error: Exception) -> Response:
        if isinstance(error, EngineOverloadedError):
            request.app.state.server.record_refusal()
        return error_response(describe(error))

    async def on_invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(describe_invalid_body(error.errors()))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, VLLMError):
            return error_response(describe(error.__cause__))  # wrapped while the body was read
        message = str(error.detail)
        if error.status_code in (404, 405) and message == HTTPStatus(error.status_code).phrase:
            message = f"{request.method} {request.url.path[:200]}: {message.lower()}"
        headers = dict(error.headers or {})
        return error_response(ApiError(error.status_code, message, headers=headers))

    app.add_exception_handler(VLLMError, on_typed)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
