# SPDX-License-Identifier: Apache-2.0
"""The API key: asked on every path but a short named list."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from vllm.entrypoints.openai.errors import ApiError, error_response

# Load balancers ask for health without a key; it tells nothing but alive or not.
OPEN_PATHS = frozenset({"/health"})


class AuthenticationMiddleware:
    """Refuses requests without one of the server's keys; keys are compared in constant time."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self.app = app
        self._digests = [_digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self.app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "no valid API key; send the header Authorization: Bearer KEY",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(refusal)(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        if _route_path(scope) in OPEN_PATHS:
            return True
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        digest = _digest(key.strip())
        # Every key is compared, so that the time does not tell which one is close.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def _route_path(scope: Scope) -> str:
    """The path as the router sees it, without the proxy's prefix."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
