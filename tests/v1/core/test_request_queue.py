# SPDX-License-Identifier: Apache-2.0
"""The policies are orders."""

import pytest

from tests.v1.core.utils import create_request
from vllm.v1.core.sched.request_queue import RequestQueue, create_request_queue
from vllm.v1.request import Request


def request(name: str, index: int, priority: int = 0) -> Request:
    made = Request(create_request(name, 3, priority=priority))
    made.arrival_index = index
    made.core_request.arrival_time = float(index)
    return made


def names(queue: RequestQueue) -> list[str]:
    return [queued.request_id for queued in queue]


def test_fcfs_serves_in_order_of_arrival_whoever_returns_when() -> None:
    queue = create_request_queue("fcfs")
    a, b, c = (request(name, i, priority=-i) for i, name in enumerate("abc"))
    for queued in (c, a, b):
        queue.add_request(queued)
    assert names(queue) == ["a", "b", "c"]
    assert not queue.may_displace(c, a)


def test_priority_serves_the_lower_value_then_the_earlier() -> None:
    queue = create_request_queue("priority")
    a, b, c, d = request("a", 0, 1), request("b", 1, 0), request("c", 2, 1), request("d", 3, -1)
    for queued in (a, b, c, d):
        queue.add_request(queued)
    assert names(queue) == ["d", "b", "a", "c"]
    assert queue.may_displace(d, b)
    assert not queue.may_displace(a, c)


def test_first_is_seen_and_taken_and_any_can_be_removed() -> None:
    queue = create_request_queue("fcfs")
    a, b, c = (request(name, i) for i, name in enumerate("abc"))
    for queued in (a, b, c):
        queue.add_request(queued)
    queue.remove_request(b)
    assert queue.peek_request() is a and queue.last_but(None) is c and queue.last_but(c) is a
    queue.remove_request(a)
    assert len(queue) == 1
    assert queue.last_but(c) is None
    queue.remove_request(c)
    with pytest.raises((AssertionError, IndexError)):
        queue.remove_request(b)
