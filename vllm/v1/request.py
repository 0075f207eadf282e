# SPDX-License-Identifier: Apache-2.0
"""A request as the scheduler sees it: its tokens, how many are computed, and its state.

The scheduler owns these; nobody else changes one.
"""

import enum
from collections.abc import Callable, Sequence

from vllm.v1.core.block_hash import BlockHash
from vllm.v1.engine.messages import EngineCoreRequest, FinishReason
from vllm.v1.outputs import LogprobsLists


class RequestStatus(enum.IntEnum):
    """Life of a request; everything after PREEMPTED is finished."""

    WAITING = 0
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_STOPPED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6
    FINISHED_ERROR = 7

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be computed."""
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> FinishReason | None:
        """The reason as the front end knows it, None while unfinished."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}


class Request:
    """One sequence.

    Attributes:
        num_computed_tokens: tokens whose keys and values are cached, or will be by the end of
            the step that was scheduled last; at most `num_tokens`.
        num_cached_tokens: prompt tokens the prefix cache gave at the first admission, or None.
        block_hashes: hashes of the full blocks known so far, extended by `update_block_hashes`.
        prompt_logprobs: rows gathered over the prompt's chunks.
        arrival_index: place in the order of arrival at the scheduler, which numbers requests.
    """

    def __init__(
        self,
        core_request: EngineCoreRequest,
        hash_blocks: "Callable[[Request], Sequence[BlockHash]] | None" = None,
    ) -> None:
        self.core_request = core_request
        self.request_id = core_request.request_id
        self.sampling_params = core_request.sampling_params
        self.status = RequestStatus.WAITING
        self.stop_reason: int | None = None
        self.error: str | None = None
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.prompt_token_ids = core_request.prompt_token_ids
        self.output_token_ids: list[int] = []
        self.all_token_ids: list[int] = list(core_request.prompt_token_ids)
        self.block_hashes: list[BlockHash] = []
        self.prompt_logprobs: list[LogprobsLists] = []
        self.arrival_index = 0
        self.queued_ts = 0.0
        self.scheduled_ts = 0.0
        self._hash_blocks = hash_blocks
        self.stop_token_ids = core_request.sampling_params.all_stop_token_ids
        self.update_block_hashes()

    @classmethod
    def from_engine_core_request(
        cls,
        core_request: EngineCoreRequest,
        hash_blocks: "Callable[[Request], Sequence[BlockHash]] | None" = None,
    ) -> "Request":
        """Wrap what the front end sent."""
        return cls(core_request, hash_blocks)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.output_token_ids)

    @property
    def max_tokens(self) -> int:
        """Most tokens to generate; the input processor has resolved None."""
        max_tokens = self.sampling_params.max_tokens
        assert max_tokens is not None, "max_tokens reached the core unresolved"
        return max_tokens

    @property
    def priority_key(self) -> tuple[int, float, str]:
        """Order under the priority policy: lower first."""
        core = self.core_request
        return (core.priority, core.arrival_time, core.request_id)

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be computed."""
        return self.status.is_finished

    @property
    def use_structured_output(self) -> bool:
        """Whether a grammar constrains the output."""
        return self.sampling_params.structured_outputs is not None

    def append_output_token(self, token_id: int) -> None:
        """Add a token that was drawn."""
        self.output_token_ids.append(token_id)
        self.all_token_ids.append(token_id)
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        """Hash the blocks that have become full."""
        if self._hash_blocks is not None:
            self.block_hashes.extend(self._hash_blocks(self))
