# SPDX-License-Identifier: Apache-2.0
"""Route of /v1/completions; holds no logic."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.json_body import JsonRoute
from vllm.entrypoints.openai.streams import EventStreamResponse, respond

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/completions", response_model=None)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue one or more prompts."""
    serving = OpenAIServingCompletion(request.app.state.server)
    if body.stream:
        events = serving.stream(body, request.state.request_id)
        return EventStreamResponse(events, serving.state.in_flight)
    return await respond(request, serving.create(body, request.state.request_id))
