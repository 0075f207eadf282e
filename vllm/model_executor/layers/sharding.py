# SPDX-License-Identifier: Apache-2.0
"""Which part of a dimension belongs to this rank. The only file of the layers that knows ranks."""

from typing import Any, NamedTuple

from vllm.exceptions import ConfigError


class Share(NamedTuple):
    """`size` entries of a dimension, from `start`."""

    start: int
    size: int


def get_tensor_model_parallel_rank() -> int:
    """Index of this process among those that split the layers."""
    return 0


def get_tensor_model_parallel_world_size() -> int:
    """Number of processes that split the layers; the configuration admits one."""
    return 1


def own_share(total: int, what: str) -> Share:
    """This rank's part of a dimension that is split evenly.

    Raises:
        ConfigError: the dimension cannot be split evenly.
    """
    rank, world = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    if total % world:
        raise ConfigError(f"{what}: {total} does not divide by tensor_parallel_size={world}")
    return Share(rank * (total // world), total // world)


def own_kv_heads(total: int, what: str) -> Share:
    """This rank's key/value heads; with more ranks than heads each head lives on several.

    Raises:
        ConfigError: neither number divides the other.
    """
    rank, world = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
    if world <= total:
        return own_share(total, what)
    if world % total:
        raise ConfigError(f"{what}: {total} heads cannot be spread over {world} ranks evenly")
    return Share(rank // (world // total), 1)


def refuse_quantization(quant_config: Any, prefix: str) -> None:
    """Refuse a quantization config, by the name of its class.

    Raises:
        ConfigError: `quant_config` is not None.
    """
    if quant_config is not None:
        raise ConfigError(
            f"{prefix or 'layer'}: quantization {type(quant_config).__name__} is not supported; "
            "use a checkpoint with fp32, fp16 or bf16 weights"
        )
