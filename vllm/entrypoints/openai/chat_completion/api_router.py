# SPDX-License-Identifier: Apache-2.0
"""Route of /v1/chat/completions; holds no logic."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.json_body import JsonRoute
from vllm.entrypoints.openai.streams import EventStreamResponse, respond

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/chat/completions", response_model=None)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation."""
    serving = OpenAIServingChat(request.app.state.server)
    if body.stream:
        events = serving.stream(body, request.state.request_id)
        return EventStreamResponse(events, serving.state.in_flight)
    return await respond(request, serving.create(body, request.state.request_id))
