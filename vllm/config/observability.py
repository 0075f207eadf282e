# SPDX-License-Identifier: Apache-2.0
"""What the engine reports about itself."""

from dataclasses import dataclass

from vllm.exceptions import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """Statistics.

    Attributes:
        disable_log_stats: keep no statistics and log no throughput.
        log_interval_s: seconds between throughput lines in the server's log.
    """

    disable_log_stats: bool = False
    log_interval_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.log_interval_s > 0:
            raise ConfigError(f"log_interval_s={self.log_interval_s}: pass seconds above 0")
