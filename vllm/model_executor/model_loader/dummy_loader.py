# SPDX-License-Identifier: Apache-2.0
"""Random weights instead of a checkpoint.

What is drawn are whole checkpoint tensors, which go into the parameters the way those of a file
do: so ranks hold parts of the same model, and what each of them holds whole is the same on all.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from vllm.config import ModelConfig
from vllm.distributed.parallel_state import get_tensor_model_parallel_world_size
from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

Part = tuple[str | int | None, list[int]]
"""Part of a fused parameter, or None for the only one, and its shape over all ranks."""


class DummyModelLoader(BaseModelLoader):
    """Random weights: each a function of its parameter's name and whole shape, on any device.

    Matrices keep the scale of their input, so that activations stay of order one; what is named
    norm lies around one; other vectors are of order one.
    """

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        with torch.no_grad():
            for name, param in model.named_parameters():
                if not param.is_floating_point():
                    raise ConfigError(
                        f"{name}: load_format='dummy' cannot draw {param.dtype} values"
                    )
                load: Callable[..., None] = getattr(param, "weight_loader", default_weight_loader)
                for shard_id, shape in _parts(name, param, load):
                    if shard_id is None:
                        load(param, self.draw(name, shape))
                    else:
                        load(param, self.draw(f"{name}.{shard_id}", shape), shard_id)

    @staticmethod
    def draw(name: str, shape: list[int]) -> torch.Tensor:
        """The values of one checkpoint tensor, fp32, on the CPU."""
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = torch.empty(shape, dtype=torch.float32)
        noise.uniform_(-math.sqrt(3), math.sqrt(3), generator=generator)  # variance 1
        if len(shape) >= 2:
            return noise.div_(math.sqrt(shape[-1]))
        return noise.mul_(0.1).add_(1.0) if "norm" in name else noise


def _parts(name: str, param: nn.Parameter, load: Callable[..., None]) -> list[Part]:
    """What a checkpoint would hold for a parameter; the layer that owns it says so."""
    layer: Any = getattr(load, "__self__", None)
    if isinstance(layer, LinearBase):
        return [(shard_id, layer.expected(param, shard_id)) for shard_id in _shard_ids(layer)]
    if isinstance(layer, VocabParallelEmbedding):
        return [(None, [layer.num_embeddings, *param.shape[1:]])]
    return [(None, _whole_shape(name, param, load))]


def _shard_ids(layer: LinearBase) -> list[str | int | None]:
    if isinstance(layer, QKVParallelLinear):
        return ["q", "k", "v"]
    if isinstance(layer, MergedColumnParallelLinear) and not isinstance(
        layer, ColumnParallelLinear
    ):
        return list(range(len(layer.output_partition_sizes)))
    return [None]


def _whole_shape(name: str, param: nn.Parameter, load: Callable[..., None]) -> list[int]:
    """The one shape that a loader takes which is no layer's: whole, or split along some axis.

    Raises:
        ConfigError: it takes none of these.
    """
    for shape in _candidates(list(param.shape)):
        try:
            load(param, torch.zeros((), dtype=param.dtype).expand(shape))
        except ModelLoadError:
            continue
        return shape
    raise ConfigError(
        f"{name}: load_format='dummy' cannot tell how this parameter is split over the ranks; "
        "pass tensor_parallel_size=1, or a checkpoint"
    )


def _candidates(shape: list[int]) -> Iterator[list[int]]:
    yield shape
    for axis, size in enumerate(shape):
        yield [*shape[:axis], size * get_tensor_model_parallel_world_size(), *shape[axis + 1 :]]
