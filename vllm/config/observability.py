# SPDX-License-Identifier: Apache-2.0
"""What the engine reports about itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """Statistics.

    Attributes:
        disable_log_stats: keep no statistics and log no throughput.
        log_interval_s: seconds between throughput lines in the server's log.
    """

    disable_log_stats: bool = False
    log_interval_s: float = 10.0
