# SPDX-License-Identifier: Apache-2.0
"""Reads JSON bodies, and says which field or limit stopped the JSON library.

Python's parser gives up on very long integers and on deep nesting with errors that name no place;
the body is then looked at once more to find it.
"""

import json
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from vllm.entrypoints.openai.protocol import MAX_DEPTH
from vllm.exceptions import VLLMValidationError


class JsonRequest(Request):
    """A request whose body is read by `parse_body`."""

    async def json(self) -> Any:
        """The body; `json.JSONDecodeError` and `VLLMValidationError` say what is wrong."""
        return parse_body(await self.body())


class JsonRoute(APIRoute):
    """A route that reads bodies as `JsonRequest` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given a `JsonRequest`."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle


@dataclass(frozen=True, slots=True)
class _LongInteger:
    num_digits: int


def parse_body(body: bytes) -> Any:
    """`body` as plain JSON.

    Raises:
        json.JSONDecodeError: it is no JSON.
        VLLMValidationError: it is no text, nests too deep, or holds an integer that is too long.
    """
    try:
        return _parse(body)
    except RecursionError:
        raise VLLMValidationError(
            f"the body is nested more than {MAX_DEPTH} levels deep; send less"
        ) from None


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise VLLMValidationError(
            f"the body is not JSON: byte {error.start} is not {error.encoding}; send UTF-8"
        ) from None
    except ValueError:
        raise _describe_long_integer(body) from None


def _describe_long_integer(body: bytes) -> VLLMValidationError:
    limit = sys.get_int_max_str_digits()

    def parse_int(text: str) -> int | _LongInteger:
        num_digits = len(text.lstrip("-"))
        return int(text) if num_digits <= limit else _LongInteger(num_digits)

    path, found = next(_long_integers(json.loads(body, parse_int=parse_int), []))
    where = ".".join(path)[:200] or "the body"
    return VLLMValidationError(
        f"{where}: an integer of {found.num_digits} digits; no field takes one of more than 20",
        parameter=path[0][:200] if path else None,
    )


def _long_integers(node: Any, path: list[str]) -> Iterator[tuple[list[str], _LongInteger]]:
    if isinstance(node, _LongInteger):
        yield path, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _long_integers(value, [*path, key])
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _long_integers(value, [*path, str(index)])
