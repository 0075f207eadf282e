# SPDX-License-Identifier: Apache-2.0
"""Requests in the policy's order. The order is all a policy is: who is first is served first,
who is last gives up blocks first. Knows no blocks and no budget.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, Literal

from vllm.v1.request import Request


class RequestQueue(ABC):
    """A list kept sorted by `key`, which is unique and does not change while queued.

    A preempted request thus returns to its own place, not to the front or the end. Insertion
    moves pointers only, which for some thousand requests costs less than a heap's upkeep.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @staticmethod
    @abstractmethod
    def key(request: Request) -> Any:
        """Place in the order, lower first."""

    @staticmethod
    @abstractmethod
    def may_displace(request: Request, running: Request) -> bool:
        """Whether waiting `request` may take the place of `running`."""

    def add_request(self, request: Request) -> None:
        """Put `request` in its place."""
        insort(self._requests, request, key=self.key)

    def peek_request(self) -> Request:
        """The first request."""
        return self._requests[0]

    def remove_request(self, request: Request) -> None:
        """Take `request`, which must be here."""
        place = bisect_left(self._requests, self.key(request), key=self.key)
        assert self._requests[place] is request, f"{request.request_id} is not queued"
        del self._requests[place]

    def last_but(self, spared: Request | None) -> Request | None:
        """The last request that is not `spared`, if any."""
        return next((r for r in reversed(self._requests) if r is not spared), None)


class FCFSRequestQueue(RequestQueue):
    """First come, first served."""

    @staticmethod
    def key(request: Request) -> int:
        """Order of arrival."""
        return request.arrival_index

    @staticmethod
    def may_displace(request: Request, running: Request) -> bool:
        """Never: who waits, waits."""
        return False


class PriorityRequestQueue(RequestQueue):
    """Lower priority value first, then order of arrival."""

    @staticmethod
    def key(request: Request) -> tuple[int, float, str]:
        """Priority, arrival time, id."""
        return request.priority_key

    @staticmethod
    def may_displace(request: Request, running: Request) -> bool:
        """Only a strictly lower value: among equals, displacing would only swap the two."""
        return request.core_request.priority < running.core_request.priority


def create_request_queue(policy: Literal["fcfs", "priority"]) -> RequestQueue:
    """An empty queue in that order."""
    return FCFSRequestQueue() if policy == "fcfs" else PriorityRequestQueue()
