# SPDX-License-Identifier: Apache-2.0
"""Routes of /v1/models; hold no logic."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.openai.serving import json_response

router = APIRouter()


@router.get("/v1/models", response_model=None)
async def show_available_models(request: Request) -> Response:
    """List the served names."""
    return json_response(OpenAIServingModels(request.app.state.server).show())


@router.get("/v1/models/{name:path}", response_model=None)
async def retrieve_model(name: str, request: Request) -> Response:
    """Describe one served name."""
    return json_response(OpenAIServingModels(request.app.state.server).retrieve(name))
