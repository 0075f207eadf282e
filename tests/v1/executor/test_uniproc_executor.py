# SPDX-License-Identifier: Apache-2.0
"""Real tiny models through executor, worker and scheduler, against Transformers."""

import pytest
import torch
from transformers import AutoConfig

from tests.utils import hf_logprobs, random_token_ids
from vllm.config import (
    CacheConfig,
    ModelConfig,
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


def make_config(path, arch, *, chunk=64, **cache):
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
    )


def start(config):
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


def generate(executor, scheduler, prompts, num_tokens):
    """Greedy tokens, their logprobs, and those of the prompts, by request id."""
    for name, prompt in prompts.items():
        params = SamplingParams(
            temperature=0.0,
            max_tokens=num_tokens,
            ignore_eos=True,
            logprobs=1,
            prompt_logprobs=1,
            seed=1,
        )
        scheduler.add_request(
            EngineCoreRequest(
                request_id=name, prompt_token_ids=prompt, sampling_params=params, arrival_time=0.0
            )
        )
    tokens = {name: [] for name in prompts}
    logprobs = {name: [] for name in prompts}
    preemptions = dict.fromkeys(prompts, 0)
    while scheduler.has_requests():
        step = scheduler.schedule()
        results = scheduler.update_from_output(step, executor.execute_model(step))
        for output in results.outputs:
            assert output.error is None
            name = output.request_id
            tokens[name] += output.new_token_ids
            preemptions[name] = output.num_preemptions
            if output.new_prompt_logprobs is not None:
                logprobs[name] = [row[0] for row in output.new_prompt_logprobs.logprobs]
            if output.new_logprobs is not None:
                logprobs[name] += [row[0] for row in output.new_logprobs.logprobs]
        scheduler.check_integrity()
    return tokens, logprobs, preemptions


def check(path, prompts, tokens, logprobs, num_tokens):
    for name, prompt in prompts.items():
        assert len(tokens[name]) == num_tokens
        whole = prompt + tokens[name]
        reference = hf_logprobs(path, whole)[:-1]
        own = reference[torch.arange(len(whole) - 1), torch.tensor(whole[1:])]
        assert logprobs[name] == pytest.approx(own.tolist(), abs=TOLERANCE)
        best = reference[len(prompt) - 1 :].max(-1).values
        assert logprobs[name][len(prompt) - 1 :] == pytest.approx(best.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [16, 64])
def test_logprobs_equal_transformers(tiny_model, arch, chunk):
    path = tiny_model(arch)
    executor, scheduler = start(make_config(path, arch, chunk=chunk))
    prompts = {f"{n}": random_token_ids(n, seed=n) for n in (1, 8, 17, 40, 90)}
    tokens, logprobs, _ = generate(executor, scheduler, prompts, 12)
    check(path, prompts, tokens, logprobs, 12)
    executor.shutdown()


def test_preemption_changes_nothing(tiny_model):
    path = tiny_model("qwen3")
    executor, scheduler = start(make_config(path, "qwen3", num_gpu_blocks_override=62))
    prompts = {f"{n}": random_token_ids(n, seed=n) for n in (50, 51, 52, 53)}
    tokens, logprobs, preemptions = generate(executor, scheduler, prompts, 60)
    assert sum(preemptions.values()) > 0
    check(path, prompts, tokens, logprobs, 60)


def test_calls_by_name_and_by_function(tiny_model):
    executor, _ = start(make_config(tiny_model("llama"), "llama"))
    model = executor.driver_worker.model_runner.model
    assert executor.collective_rpc("get_model") == [model]
    assert executor.collective_rpc(
        lambda worker, a, b: (worker, a, b), args=(1,), kwargs={"b": 2}
    ) == [(executor.driver_worker, 1, 2)]
    assert executor.collective_rpc("apply_model", args=(type,)) == [type(model)]
    assert executor.determine_available_memory() == 2**22
    executor.check_health()
    executor.shutdown()
    with pytest.raises(AssertionError, match="not loaded"):
        executor.collective_rpc("get_model")
