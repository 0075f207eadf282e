# SPDX-License-Identifier: Apache-2.0
"""Routes of /tokenize and /detokenize; hold no logic."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from vllm.entrypoints.openai.json_body import JsonRoute
from vllm.entrypoints.openai.serving import json_response
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from vllm.entrypoints.serve.tokenize.serving import OpenAIServingTokenization

router = APIRouter(route_class=JsonRoute)


@router.post("/tokenize", response_model=None)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Token ids of a text or a conversation."""
    serving = OpenAIServingTokenization(request.app.state.server)
    return json_response(await serving.tokenize(body))


@router.post("/detokenize", response_model=None)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Text of token ids."""
    serving = OpenAIServingTokenization(request.app.state.server)
    return json_response(await serving.detokenize(body))
