# SPDX-License-Identifier: Apache-2.0
"""An executor with a scheduler around it, and what Transformers says about its output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.utils import hf_logprobs
from vllm.config import (
    CacheConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_kv_cache_config
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.messages import EngineCoreRequest
from vllm.v1.executor import Executor
from vllm.v1.structured_output import StructuredOutputManager

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
MAX_MODEL_LEN = 160
TOLERANCE = 1e-4  # logprobs in fp32 against Transformers' eager attention

Prompts = Mapping[str, Sequence[int]]


@dataclass
class Generated:
    """What one request brought.

    Attributes:
        logprobs: of the prompt's tokens from the second on, if asked for, and of the generated.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0


def make_config(
    path: Path,
    arch: str,
    *,
    chunk: int = 64,
    tp: int = 1,
    backend: str = "uni",
    load_format: str = "auto",
    **cache: Any,
) -> VllmConfig:
    """A configuration in fp32 with a small cache."""
    from transformers import AutoConfig

    hf_config = AutoConfig.from_pretrained(path)
    return VllmConfig(
        model_config=ModelConfig(
            model=str(path),
            path=path,
            served_model_name=("tiny",),
            tokenizer=str(path),
            hf_config=hf_config,
            architecture=ARCHITECTURES[arch],
            dtype=torch.float32,
            max_model_len=MAX_MODEL_LEN,
            vocab_size=hf_config.vocab_size,
        ),
        cache_config=CacheConfig(**{"block_size": 8, "kv_cache_memory_bytes": 2**22, **cache}),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=chunk, max_num_seqs=4, max_model_len=MAX_MODEL_LEN
        ),
        parallel_config=ParallelConfig(
            tensor_parallel_size=tp,
            distributed_executor_backend=backend,  # type: ignore[arg-type]
        ),
        load_config=LoadConfig(load_format=load_format),  # type: ignore[arg-type]
    )


def start(config: VllmConfig) -> tuple[Executor, Scheduler]:
    """The executor the configuration names, with its cache, and a scheduler."""
    executor = Executor.get_class(config)(config)
    kv_cache_config = get_kv_cache_config(
        executor.get_kv_cache_specs(),
        executor.determine_available_memory(),
        config.cache_config,
        MAX_MODEL_LEN,
    )
    executor.initialize_from_config(kv_cache_config)
    scheduler = Scheduler(
        config.scheduler_config,
        config.cache_config,
        kv_cache_config,
        StructuredOutputManager(100, object, StructuredOutputsConfig()),
        log_stats=True,
    )
    return executor, scheduler


def generate(
    executor: Executor,
    scheduler: Scheduler,
    prompts: Prompts,
    num_tokens: int,
    *,
    prompt_logprobs: int | None = 1,
    temperature: float = 0.0,
) -> dict[str, Generated]:
    """Run requests to their end. With prompt logprobs, cached prefixes are not used."""
    for name, prompt in prompts.items():
        params = SamplingParams(
            temperature=temperature,
            max_tokens=num_tokens,
            ignore_eos=True,
            logprobs=1,
            prompt_logprobs=prompt_logprobs,
            seed=1,
        )
        scheduler.add_request(
            EngineCoreRequest(
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=params,
                arrival_time=0.0,
            )
        )
    results = {name: Generated() for name in prompts}
    while scheduler.has_requests():
        step = scheduler.schedule()
        for output in scheduler.update_from_output(step, executor.execute_model(step)).outputs:
            assert output.error is None
            result = results[output.request_id]
            result.tokens += output.new_token_ids
            result.num_preemptions = output.num_preemptions
            result.num_cached_tokens = max(result.num_cached_tokens, output.num_cached_tokens)
            if output.new_prompt_logprobs is not None:
                result.logprobs = [row[0] for row in output.new_prompt_logprobs.logprobs]
            if output.new_logprobs is not None:
                result.logprobs += [row[0] for row in output.new_logprobs.logprobs]
        scheduler.check_integrity()
    return results


def check(path: Path, prompts: Prompts, results: Mapping[str, Generated], num_tokens: int) -> None:
    """Greedy results are Transformers': every logprob within the tolerance, every token a best."""
    for name, prompt in prompts.items():
        result = results[name]
        assert len(result.tokens) == num_tokens
        whole = [*prompt, *result.tokens]
        reference = hf_logprobs(path, whole)[:-1]
        own = reference[torch.arange(len(whole) - 1), torch.tensor(whole[1:])]
        assert result.logprobs == pytest.approx(
            own[-len(result.logprobs) :].tolist(), abs=TOLERANCE
        )
        best = reference[len(prompt) - 1 :].max(-1).values
        assert result.logprobs[-num_tokens:] == pytest.approx(best.tolist(), abs=TOLERANCE)
