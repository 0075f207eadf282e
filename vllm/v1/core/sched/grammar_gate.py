# SPDX-License-Identifier: Apache-2.0
"""Requests whose grammar is still being compiled, kept out of the waiting queue meanwhile.

The scheduler calls the gate for every request; one without a grammar passes through. Knows no
grammar itself: the structured-output manager compiles and judges.
"""

from collections.abc import Iterator
from typing import Protocol

from vllm.exceptions import VLLMError
from vllm.v1.request import Request, RequestStatus


class GrammarManager(Protocol):
    """What the scheduler needs of the structured-output manager."""

    def grammar_init(self, request: Request) -> None:
        """Start to compile the request's grammar, without waiting."""

    def is_ready(self, request: Request) -> bool:
        """Whether the grammar is compiled; raises the typed error if that failed."""

    def accept_tokens(self, request: Request, token_ids: list[int]) -> bool:
        """Advance the grammar; False if it does not allow the tokens."""

    def is_terminated(self, request: Request) -> bool:
        """Whether the grammar is complete and allows nothing more."""

    def clear(self, request_id: str) -> None:
        """Forget the request's grammar."""


class GrammarGate:
    """Holds requests back until their grammars are ready, and lets others pass.

    Args:
        manager: compiles and judges.
    """

    def __init__(self, manager: GrammarManager) -> None:
        self._manager = manager
        self._held: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._held.values())

    def holds(self, request: Request) -> bool:
        """Start the grammar of a new request; True if the request must wait for it here."""
        if not request.use_structured_output:
            return False
        self._manager.grammar_init(request)
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        self._held[request.request_id] = request
        return True

    def release(self) -> tuple[list[Request], list[tuple[Request, str]]]:
        """Requests whose grammar has become ready, and those whose grammar failed, with why."""
        ready, failed = [], []
        for request in list(self._held.values()):
            try:
                if not self._manager.is_ready(request):
                    continue
            except VLLMError as error:
                failed.append((request, str(error)))
                continue
            del self._held[request.request_id]
            request.status = RequestStatus.WAITING
            ready.append(request)
        return ready, failed

    def advance(self, request: Request, token_ids: list[int]) -> bool:
        """Tell the grammar what was drawn; False if it does not allow that."""
        if not request.use_structured_output or not token_ids:
            return True
        return self._manager.accept_tokens(request, token_ids)

    def is_complete(self, request: Request) -> bool:
        """Whether the request's grammar allows nothing more."""
        return request.use_structured_output and self._manager.is_terminated(request)

    def forget(self, request: Request) -> None:
        """Drop a request that has ended."""
        self._held.pop(request.request_id, None)
        if request.use_structured_output:
            self._manager.clear(request.request_id)
