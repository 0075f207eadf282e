# SPDX-License-Identifier: Apache-2.0
"""/health: 200 while the engine answers, 503 once it is dead or hangs."""

from fastapi import APIRouter, Request
from starlette.responses import Response

router = APIRouter()


@router.get("/health", response_model=None)
async def health(request: Request) -> Response:
    """Ask the engine; an `EngineDeadError` becomes 503."""
    await request.app.state.server.engine.check_health()
    return Response(status_code=200)
