# SPDX-License-Identifier: Apache-2.0
"""The step: how many tokens and requests it may hold, and who goes first."""

from dataclasses import dataclass
from typing import Literal

from vllm.exceptions import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Scheduling limits.

    Attributes:
        max_num_batched_tokens: most tokens in one step.
        max_num_seqs: most requests running at once.
        max_model_len: longest prompt plus output, in tokens.
        enable_chunked_prefill: let a prompt span steps; off, a prompt must fit in one step.
        long_prefill_token_threshold: most tokens one prompt gets in a step; 0 is no cap.
        policy: "fcfs" in order of arrival, or "priority" (lower value first).
        max_waiting_requests: bound on the waiting queue; None is unbounded.
        max_waiting_tokens: bound on prompt tokens that wait; None is unbounded.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    max_waiting_requests: int | None = None
    max_waiting_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: pass at least 1")
        for name in ("max_waiting_requests", "max_waiting_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name}={value}: pass 0 or more, or None for no bound")
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(
                f"long_prefill_token_threshold={self.long_prefill_token_threshold}: pass 0 (no "
                "cap) or more"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below max_model_len="
                f"{self.max_model_len}; without chunked prefill a prompt must fit in one step: "
                "raise the former or enable chunked prefill"
            )
        if self.policy not in ("fcfs", "priority"):
            raise ConfigError(f"scheduling_policy={self.policy!r}: pass 'fcfs' or 'priority'")
