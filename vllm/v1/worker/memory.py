# SPDX-License-Identifier: Apache-2.0
"""How much memory the KV cache gets.

An exact size wins: VLLM_CPU_KVCACHE_SPACE on the CPU, else `kv_cache_memory_bytes`. Otherwise
the engine as a whole takes `gpu_memory_utilization` of what this process may really use, and
the cache gets what its weights and a step's working memory leave of that.

With several ranks each does this sum for itself: its own weights, its own step, and its part of
what they share, see `distributed.utils.memory_per_rank`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from vllm import envs
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed.parallel_state import get_tensor_model_parallel_world_size
from vllm.exceptions import ConfigError
from vllm.logger import init_logger
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.platforms.interface import DeviceMemory
from vllm.utils.mem_utils import GIB, MIB, format_bytes
from vllm.v1.kv_cache_interface import DTYPE_BYTES, KVCacheSpec

logger = init_logger(__name__)

_ATTENTION_SCRATCH_BYTES = 64 * MIB  # bound on scores, see `ops.paged_attention`


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """What the engine holds besides the cache, in bytes."""

    weights: int
    activations: int


def weights_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers, shared storages counted once."""
    tensors = [*model.parameters(), *model.buffers()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def estimate_activations(
    model: nn.Module, vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]
) -> int:
    """Bytes of the largest step's working memory, an estimate from above.

    Counted: four fp32 rows of the widest layer per token, four fp32 rows of logits per request
    that samples (six where they come from several ranks, each of which then has all of them),
    one layer's longest context read out in its own type and in fp32, and scores.
    """
    scheduler, vocab_size = vllm_config.scheduler_config, vllm_config.model_config.vocab_size
    hidden = 16 * scheduler.max_num_batched_tokens * _widest_layer(model, vocab_size)
    num_rows = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    is_split = get_tensor_model_parallel_world_size() > 1
    logits = (24 if is_split else 16) * num_rows * vocab_size
    per_token = [
        spec.page_size_bytes
        // spec.block_size
        * (4 + DTYPE_BYTES[spec.dtype])
        // DTYPE_BYTES[spec.dtype]
        for spec in specs.values()
    ]
    context = vllm_config.model_config.max_model_len * max(per_token, default=0)
    return hidden + logits + context + _ATTENTION_SCRATCH_BYTES


def _widest_layer(model: nn.Module, vocab_size: int) -> int:
    """Largest input or output of a matrix held here, embedding and head aside."""
    rows_of_tokens = {
        id(param)
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding)  # a rank's part has a size of its own
        for param in module.parameters(recurse=False)
    }
    return max(
        (
            max(p.shape)
            for p in model.parameters()
            if p.dim() == 2 and vocab_size not in p.shape and id(p) not in rows_of_tokens
        ),
        default=0,
    )


def available_cache_bytes(
    cache_config: CacheConfig, device: DeviceMemory, needs: MemoryNeeds, *, on_cpu: bool
) -> int:
    """Bytes for the KV cache, logged with the numbers they come from.

    Raises:
        ConfigError: an exact size is above what is there, or the share leaves nothing.
    """
    exact, source = _exact_size(cache_config, on_cpu)
    if exact is not None:
        if exact > device.available:
            raise ConfigError(
                f"{source} asks for a KV cache of {format_bytes(exact)}, and {device.bound_by} "
                f"leaves {format_bytes(device.available)}; pass a smaller size"
            )
        logger.info("KV cache: %s, as asked by %s", format_bytes(exact), source)
        return exact
    share = cache_config.gpu_memory_utilization
    # Weights may be mapped and not read yet, so the larger of the two counts.
    held = max(device.used, needs.weights)
    usable = min(device.total, device.available + device.used)
    free = int(share * usable) - held - needs.activations
    flag = "--gpu-memory-utilization"  # upstream's name, on every device
    what = f"{'memory share ' if on_cpu else ''}{flag}={share:g}"
    detail = (
        f"{what} of {format_bytes(usable)} (bound by {device.bound_by}) "
        f"less {format_bytes(held)} held now (weights {format_bytes(needs.weights)}) and "
        f"{format_bytes(needs.activations)} for a step"
    )
    if free <= 0:
        raise ConfigError(
            f"no memory is left for the KV cache: {detail}; raise {flag}, or "
            "lower max_num_batched_tokens or max_num_seqs"
        )
    logger.info("KV cache: up to %s: %s", format_bytes(free), detail)
    return free


def _exact_size(cache_config: CacheConfig, on_cpu: bool) -> tuple[int | None, str]:
    if on_cpu and (space_gib := envs.VLLM_CPU_KVCACHE_SPACE) is not None:
        if space_gib < 0:
            raise ConfigError(
                f"VLLM_CPU_KVCACHE_SPACE={space_gib:g}: pass GiB above 0, or 0 to let the engine "
                "choose"
            )
        if space_gib > 0:
            return int(space_gib * GIB), "VLLM_CPU_KVCACHE_SPACE"
    return cache_config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
