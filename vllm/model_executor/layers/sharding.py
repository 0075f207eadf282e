# SPDX-License-Identifier: Apache-2.0
"""Which part of a dimension belongs to this rank. The only file of the layers that knows ranks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vllm.distributed.parallel_state import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.exceptions import ConfigError


class Share(NamedTuple):
    """`size` entries of a dimension, from `start`."""

    start: int
    size: int


class Ranks(NamedTuple):
    """This process among those that split a layer."""

    rank: int
    size: int


def tensor_parallel(disable_tp: bool = False) -> Ranks:
    """Rank and number of ranks; a layer that every rank holds whole sees itself alone."""
    if disable_tp:
        return Ranks(0, 1)
    return Ranks(get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size())


def own_share(total: int, what: str, *, disable_tp: bool = False) -> Share:
    """This rank's part of a dimension that is split evenly.

    Raises:
        ConfigError: the dimension cannot be split evenly.
    """
    rank, world = tensor_parallel(disable_tp)
    if total % world:
        raise ConfigError(
            f"{what}: {total} does not divide by tensor_parallel_size={world}; pass a size that "
            "divides it"
        )
    return Share(rank * (total // world), total // world)


def own_kv_heads(total: int, what: str, *, disable_tp: bool = False) -> Share:
    """This rank's key/value heads; with more ranks than heads each head lives on several.

    Raises:
        ConfigError: neither number divides the other.
    """
    rank, world = tensor_parallel(disable_tp)
    if world <= total:
        return own_share(total, what, disable_tp=disable_tp)
    if world % total:
        raise ConfigError(
            f"{what}: {total} heads cannot be spread over {world} ranks evenly; pass a "
            f"tensor_parallel_size that is a multiple or a divisor of {total}"
        )
    return Share(rank // (world // total), 1)


def require_tp_plan(tp_plan: Mapping[str, str] | None, model: str) -> None:
    """Refuse to split a model that does not say how.

    Args:
        tp_plan: which module is split in which way; empty or None if the model has none.
        model: class of the model, for the message.

    Raises:
        ConfigError: there are several ranks and no plan.
    """
    world = get_tensor_model_parallel_world_size()
    if world > 1 and not tp_plan:
        raise ConfigError(
            f"{model} has no tensor-parallel plan, so tensor_parallel_size={world} cannot split "
            "it; pass tensor_parallel_size=1"
        )


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
