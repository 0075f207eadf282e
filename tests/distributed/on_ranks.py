# SPDX-License-Identifier: Apache-2.0
"""What tests run on each rank; every function returns what the test compares."""

import functools
import os
import time
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
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.model_loader.weight_utils import sharded_weight_loader
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.messages import EngineCoreRequest
from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher
from vllm.v1.structured_output import StructuredOutputManager


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


def structured_outputs(path: Path, regex: str, delays_s: tuple[float, float]) -> list[str]:
    """Texts of a constrained and a free request; each rank compiles in a time of its own."""
    from vllm import LLM

    compile_ = StructuredOutputManager._compile

    def slowly(self: StructuredOutputManager, params: Any) -> Any:
        time.sleep(delays_s[int(os.environ["RANK"])])
        return compile_(self, params)

    StructuredOutputManager._compile = slowly  # type: ignore[method-assign]
    llm = LLM(
        str(path),
        tensor_parallel_size=2,
        distributed_executor_backend="external_launcher",
        dtype="float32",
        max_model_len=64,
        kv_cache_memory_bytes=2**21,
    )
    params = [
        SamplingParams(
            temperature=1.0, max_tokens=12, structured_outputs=StructuredOutputsParams(regex=regex)
        ),
        SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True),
    ]
    outputs = llm.generate(["the quick", "brown fox"], params, use_tqdm=False)
    return [output.outputs[0].text for output in outputs]


def failing_steps(path: Path, failing_ranks: tuple[int, ...]) -> list[str]:
    """What becomes of two requests, where the first one's step ends and then fails somewhere."""
    core = EngineCore(
        make_config(path, "llama", tp=2, backend="external_launcher"), log_stats=False
    )
    assert isinstance(core.executor, ExecutorWithExternalLauncher)
    worker = core.executor.driver_worker
    execute = worker.execute_model

    def fail(*args: Any) -> Any:
        execute(*args)
        worker.execute_model = execute  # type: ignore[method-assign]
        raise RuntimeError("broken")

    if int(os.environ["RANK"]) in failing_ranks:
        worker.execute_model = fail  # type: ignore[method-assign]
    fates = []
    try:
        for name in ("a", "b"):
            params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, seed=0)
            core.add_request(
                EngineCoreRequest(
                    request_id=name,
                    prompt_token_ids=[10, 11, 12],
                    sampling_params=params,
                    arrival_time=0.0,
                )
            )
            while core.has_requests():
                fates += [output.error or "done" for output in core.step().outputs]
    except EngineDeadError as error:
        fates.append(f"dead: {error}")
    return fates


class EveryKind(nn.Module):
    """A parameter for each way of being split, of odd sizes where that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = VocabParallelEmbedding(7, 8)
        self.qkv = QKVParallelLinear(8, 4, 6, 1)
        self.gate_up = MergedColumnParallelLinear(8, [6, 6], bias=False)
        self.column = ColumnParallelLinear(8, 6)
        self.row = RowParallelLinear(6, 8)
        self.replicated = ReplicatedLinear(8, 3)
        self.norm = nn.LayerNorm(8)
        self.sinks = nn.Parameter(
            torch.empty(6 // distributed.get_tensor_model_parallel_world_size())
        )
        self.sinks.weight_loader = sharded_weight_loader(0)  # type: ignore[attr-defined]


def dummy_weights() -> dict[str, torch.Tensor]:
    """What `load_format="dummy"` fills in on this rank."""
    from vllm.config import LoadConfig

    model = EveryKind().requires_grad_(False)
    for param in model.parameters():
        param.fill_(float("nan"))
    DummyModelLoader(LoadConfig(load_format="dummy")).load_weights(model, None)  # type: ignore[arg-type]
    return {name: param.detach().clone() for name, param in model.named_parameters()}


@in_group(2)
def split_dummy_weights() -> dict[str, torch.Tensor]:
    """The same, where each of two ranks holds its part."""
    return dummy_weights()


@in_group(2)
def activations(path: Path) -> int:
    """What a step is estimated to need beside the weights."""
    from vllm.model_executor.model_loader.build import initialize_model
    from vllm.v1.worker.memory import estimate_activations

    config = make_config(path, "llama", tp=2, backend="external_launcher")
    return estimate_activations(initialize_model(config, torch.device("cpu")), config, {})
