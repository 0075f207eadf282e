# SPDX-License-Identifier: Apache-2.0
"""What both front ends ask of those above them: arguments that resolve, loggers that record.

Protocols, so that nothing here imports what stands higher in the house.
"""

from typing import Protocol

from vllm.config import VllmConfig
from vllm.v1.engine.messages import SchedulerStats
from vllm.v1.metrics.stats import IterationStats


class StatLogger(Protocol):
    """Takes the numbers of each batch of outputs."""

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None
    ) -> None:
        """Add one batch's numbers."""
        ...


class ResolvesConfig(Protocol):
    """Arguments as the user typed them."""

    def create_engine_config(self) -> VllmConfig:
        """Resolve every "auto"."""
        ...
