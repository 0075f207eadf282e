# SPDX-License-Identifier: Apache-2.0
"""The KV cache: how much memory, in blocks of what size, and whether prefixes are shared."""

from dataclasses import dataclass

from vllm.exceptions import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """KV cache settings.

    Attributes:
        block_size: tokens per block.
        gpu_memory_utilization: share of the memory this process may use that the engine takes
            in all; on the CPU it is a share of what the cgroup and the host leave available.
        kv_cache_memory_bytes: exact size of the cache in bytes; overrides the share.
        num_gpu_blocks_override: exact number of blocks; overrides both (tests).
        enable_prefix_caching: share full blocks between requests with equal prefixes.
        disable_hybrid_kv_cache_manager: keep whole contexts for windowed layers too.
        watermark: share of blocks that admission leaves free for running requests.
    """

    block_size: int = 16
    gpu_memory_utilization: float = 0.5
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    watermark: float = 0.01

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size={self.block_size}: pass at least 1")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization={self.gpu_memory_utilization}: pass a share above 0 and "
                "up to 1"
            )
        if self.kv_cache_memory_bytes is not None and self.kv_cache_memory_bytes < 1:
            raise ConfigError(
                f"kv_cache_memory_bytes={self.kv_cache_memory_bytes}: pass a positive size"
            )
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"watermark={self.watermark}: pass a share from 0 to below 1")
