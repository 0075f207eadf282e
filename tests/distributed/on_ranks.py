# SPDX-License-Identifier: Apache-2.0
"""What tests run on each rank; every function returns what the test compares."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.v1.executor.utils import Generated, Prompts, generate, make_config, start
from vllm import distributed
from vllm.exceptions import ConfigError, EngineDeadError
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)


def in_group(tp_size: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a function the group it needs."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any) -> Any:
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            distributed.init_distributed_environment(world, rank, "env://", "gloo")
            distributed.initialize_model_parallel(tp_size, "gloo", torch.device("cpu"))
            try:
                return function(*args)
            finally:
                distributed.destroy_distributed_environment()

        return run

    return decorate


def _fill(param: nn.Parameter, whole: torch.Tensor) -> None:
    param.weight_loader(param, whole)  # type: ignore[attr-defined]


@in_group(2)
def collectives() -> dict[str, Any]:
    """Two groups of two in a world of four."""
    rank = distributed.get_tensor_model_parallel_rank()
    world_rank = int(os.environ["RANK"])
    own = torch.full((2, 3), float(world_rank + 1))
    strided = torch.arange(6.0).view(3, 2).t() + world_rank
    return {
        "place": (rank, distributed.get_tensor_model_parallel_world_size()),
        "ranks": distributed.get_tp_group().ranks,
        "sum": distributed.tensor_model_parallel_all_reduce(own.clone()),
        "sum_bf16": distributed.tensor_model_parallel_all_reduce(own.bfloat16()),
        "sum_strided": distributed.tensor_model_parallel_all_reduce(strided),
        "last": distributed.tensor_model_parallel_all_gather(own),
        "first": distributed.tensor_model_parallel_all_gather(own, 0),
        "strided": distributed.tensor_model_parallel_all_gather(strided),
        "half": distributed.tensor_model_parallel_all_gather(own.half(), dim=-2),
        "ints": distributed.get_tp_group().all_gather_ints(2**40 + world_rank),
    }


@in_group(2)
def linear_layers(weights: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Each kind of layer on the same input; where a layer gives a part, the part."""
    rank = distributed.get_tensor_model_parallel_rank()
    (out, size), kind = weights["w"].shape, {"return_bias": False}
    layers: dict[str, nn.Module] = {
        "replicated": ReplicatedLinear(size, out, **kind),
        "column": ColumnParallelLinear(size, out, **kind),
        "gathered": ColumnParallelLinear(size, out, gather_output=True, **kind),
        "whole_column": ColumnParallelLinear(size, out, disable_tp=True, **kind),
        "row_of_whole": RowParallelLinear(size, out, input_is_parallel=False, **kind),
        "row": RowParallelLinear(size, out, **kind),
        "row_partial": RowParallelLinear(size, out, reduce_results=False, **kind),
        "whole_row": RowParallelLinear(size, out, disable_tp=True, **kind),
    }
    results = {}
    for name, layer in layers.items():
        _fill(layer.weight, weights["w"])  # type: ignore[arg-type]
        _fill(layer.bias, weights["b"])  # type: ignore[arg-type]
        is_part = name in ("row", "row_partial")
        results[name] = layer(x.chunk(2, -1)[rank] if is_part else x).clone()
    merged = MergedColumnParallelLinear(size, [out, out], bias=False, disable_tp=True, **kind)
    merged.weight.weight_loader(merged.weight, weights["w"], 0)
    merged.weight.weight_loader(merged.weight, 2 * weights["w"], 1)
    results["whole_merged"] = merged(x)
    return results


@in_group(2)
def vocabulary(
    embedding: torch.Tensor, head: torch.Tensor, bias: torch.Tensor, ids: torch.Tensor
) -> dict[str, Any]:
    """Embedding, and logits of a head with and without bias."""
    rows, size = embedding.shape
    embed = VocabParallelEmbedding(rows, size)
    lm_head = ParallelLMHead(rows, size, bias=True)
    tied = ParallelLMHead(rows, size)
    tied.tie_weights(embed)
    for param, whole in ((embed.weight, embedding), (lm_head.weight, head), (lm_head.bias, bias)):
        assert isinstance(param, nn.Parameter)
        param.data.fill_(float("nan"))
        _fill(param, whole)
    x = embed(ids)
    process = LogitsProcessor(rows, scale=0.5)
    return {
        "rows_here": embed.weight.shape[0],
        "embedding": x.clone(),
        "batched": embed(ids[None]).clone(),
        "logits": process(lm_head, x),
        "tied": process(tied, x),
    }


def engine(
    path: Path, arch: str, tp: int, options: dict[str, Any], prompts: Prompts, num_tokens: int
) -> tuple[dict[str, Generated], dict[str, Generated]]:
    """A first run of greedy requests, and a second that may use the first one's prefixes."""
    executor, scheduler = start(
        make_config(path, arch, tp=tp, backend="external_launcher", **options)
    )
    first = generate(executor, scheduler, prompts, num_tokens)
    second = generate(executor, scheduler, prompts, num_tokens, prompt_logprobs=None)
    executor.shutdown()
    return first, second


def unlike_requests(path: Path, prompts: Prompts) -> str:
    """The ranks are given requests of their own; what that raises."""
    executor, scheduler = start(make_config(path, "llama", tp=2, backend="external_launcher"))
    own = {"0": prompts[os.environ["RANK"]]}
    try:
        generate(executor, scheduler, own, 2)
    except EngineDeadError as error:
        return str(error)
    return "nothing was raised"


def cache_sizes(path: Path, own_bytes: tuple[int, int]) -> int | str:
    """What the ranks agree on where each would take another size, or what they raise."""
    size = own_bytes[int(os.environ["RANK"])]
    config = make_config(
        path, "llama", tp=2, backend="external_launcher", kv_cache_memory_bytes=size
    )
    try:
        executor, _ = start(config)
    except ConfigError as error:
        return str(error)
    return executor.determine_available_memory()
