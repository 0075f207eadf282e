# SPDX-License-Identifier: Apache-2.0
"""Requests of a step that failed as a whole: one of them may be the cause.

Each is run alone until it has drawn a token (innocent) or failed by itself (the cause). So a
request that breaks the step harms nobody else. Knows names only.
"""

from collections.abc import Iterable


class Suspects:
    """Names of suspects, the next to be tried first."""

    def __init__(self) -> None:
        self._req_ids: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._req_ids)

    @property
    def next(self) -> str | None:
        """The suspect whose turn it is, None when there is none."""
        return next(iter(self._req_ids), None)

    def add(self, req_ids: Iterable[str]) -> None:
        """Suspect requests; who is suspected already keeps its turn."""
        for req_id in req_ids:
            self._req_ids.setdefault(req_id)

    def clear(self, req_id: str) -> None:
        """The request has proved innocent, or has ended."""
        self._req_ids.pop(req_id, None)
