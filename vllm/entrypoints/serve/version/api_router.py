# SPDX-License-Identifier: Apache-2.0
"""/version: the engine's version."""

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from vllm.version import __version__

router = APIRouter()


@router.get("/version", response_model=None)
async def show_version() -> Response:
    """The version of the installed package."""
    return JSONResponse({"version": __version__})
