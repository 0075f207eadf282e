# SPDX-License-Identifier: Apache-2.0
"""/metrics: the engine's registry in Prometheus text form."""

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

router = APIRouter()


@router.get("/metrics", response_model=None)
async def metrics(request: Request) -> Response:
    """Current values of all metrics."""
    text = generate_latest(request.app.state.server.registry)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})
