# SPDX-License-Identifier: Apache-2.0
"""What layers may ask about the step in progress. Set around a forward pass, never nested."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.attention.backend import AttentionMetadata


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """One forward pass.

    Attributes:
        attn_metadata: by attention layer name; None in a profiling pass, where attention
            outputs zeros and touches no cache.
        num_tokens: rows of the flat batch.
    """

    attn_metadata: "Mapping[str, AttentionMetadata] | None"
    num_tokens: int


_current: ContextVar[ForwardContext | None] = ContextVar("forward_context", default=None)


@contextmanager
def set_forward_context(
    attn_metadata: "Mapping[str, AttentionMetadata] | None", *, num_tokens: int
) -> Iterator[ForwardContext]:
    """Make the step known to the layers called inside the block.

    Raises:
        RuntimeError: a forward pass is already in progress.
    """
    if _current.get() is not None:
        raise RuntimeError("a forward pass is already in progress: set_forward_context nests")
    context = ForwardContext(attn_metadata, num_tokens)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def get_forward_context() -> ForwardContext:
    """The pass in progress.

    Raises:
        RuntimeError: there is none.
    """
    context = _current.get()
    if context is None:
        raise RuntimeError("no forward pass is in progress: call inside set_forward_context")
    return context
