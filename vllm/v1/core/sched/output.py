# SPDX-License-Identifier: Apache-2.0
"""What the scheduler asks of the worker for one step.

A preempted request comes back as a new one, with everything it has generated: the worker never
holds half a state.
"""

from dataclasses import dataclass, field

import numpy as np

from vllm.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class GrammarOutput:
    """Which tokens the grammars allow in this step.

    Attributes:
        req_ids: requests with a grammar, in the order of the rows.
        bitmask: [len(req_ids), ceil(vocab_size / 32)], int32; bit set means allowed.
    """

    req_ids: list[str]
    bitmask: np.ndarray


@dataclass(frozen=True, slots=True)
class NewRequestData:
    """A request the worker has no row for (first time, or again after preemption).

    Attributes:
        prompt_token_ids: the prompt; not to be modified.
        output_token_ids: tokens generated before a preemption, usually empty; a copy.
        sampling_params: complete and checked.
        block_ids: block ids per KV cache group, in order of position.
        num_computed_tokens: tokens whose keys and values are already in those blocks.
    """

    req_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int


@dataclass(frozen=True, slots=True)
class CachedRequestData:
    """A request the worker already has a row for.

    Attributes:
        new_block_ids: ids to append, per KV cache group; None when there are none.
        num_computed_tokens: tokens computed before this step.
    """

    req_id: str
    new_block_ids: tuple[list[int], ...] | None
    num_computed_tokens: int


@dataclass(slots=True)
class SchedulerOutput:
    """One step.

    Attributes:
        num_scheduled_tokens: tokens per request in this step, in batch order.
        finished_req_ids: requests whose rows may go; also those preempted before this step.
        grammar_req_ids: scheduled requests that sample in this step under a grammar.
    """

    scheduled_new_reqs: list[NewRequestData] = field(default_factory=list)
    scheduled_cached_reqs: list[CachedRequestData] = field(default_factory=list)
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    finished_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: set[str] = field(default_factory=set)
    grammar_req_ids: list[str] = field(default_factory=list)

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens in the step over all requests."""
        return sum(self.num_scheduled_tokens.values())
