# SPDX-License-Identifier: Apache-2.0
"""The default model in fp32 against Transformers, logprobs within 1e-4.

20 prompts of 1 to 2,000 tokens alone, batched and in chunks: every prompt position, and the 20
likeliest tokens at every output position. With prefix hits: output positions only, since a request
for prompt logprobs does not read the cache. Through preemption: the 17 prompts of up to 300 tokens,
twice each, output positions only.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm import LLM, RequestOutput, SamplingParams
from vllm.exceptions import VLLMError
from vllm.model_executor.model_loader.gguf_loader import gguf_weights_iterator
from vllm.tokenizers import get_tokenizer
from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.default_model import ensure_default_model

# Both sides of a block (16), of the chunks (16, 64) and of two blocks; long ones last.
LENGTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129, 255, 300, 513, 1000, 2000]
NUM_OUTPUTS = 4
TOLERANCE = 1e-4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model_path() -> str:
    try:
        return str(ensure_default_model())
    except VLLMError as error:
        pytest.skip(f"the default model cannot be had: {error}")


@pytest.fixture(scope="module")
def prompts(model_path) -> list[list[int]]:
    # Plain text, each from another place in it. Random ids would not do: after some of them the
    # second token's state is so ill-conditioned that Transformers in fp32 is 3e-3 from itself in
    # fp64, and its fp32 result is no yardstick.
    tokenizer = get_tokenizer(model_path)
    ids = tokenizer((Path(__file__).parents[2] / "LICENSE").read_text())["input_ids"]
    return [ids[i : i + n] for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def reference(model_path: str) -> Iterator[Any]:
    """Transformers, eager, fp32, with the same unpacked weights."""
    from transformers import AutoModelForCausalLM

    config = get_config(model_path)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    weights = {w.name: w.tensor for w in gguf_weights_iterator(Path(model_path), torch.float32)}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    cache: dict[tuple[int, ...], torch.Tensor] = {}

    def logprobs(token_ids: list[int]) -> torch.Tensor:
        key = tuple(token_ids)
        if key not in cache:
            with torch.inference_mode():
                cache[key] = model.eval()(torch.tensor([token_ids])).logits[0].log_softmax(-1)
        return cache[key]

    yield logprobs


def engine(model_path: str, **options: Any) -> LLM:
    options = {
        "max_model_len": 2048,
        "max_num_seqs": 32,
        "kv_cache_memory_bytes": 1 << 30,
    } | options
    return LLM(model=model_path, dtype="float32", seed=0, **options)


def params(*, with_prompt: bool) -> SamplingParams:
    return SamplingParams(
        temperature=0,
        max_tokens=NUM_OUTPUTS,
        ignore_eos=True,
        logprobs=20,
        prompt_logprobs=1 if with_prompt else None,
    )


def check(outputs: list[RequestOutput], reference: Any) -> float:
    """Largest difference of any logprob; asserts that it is within the tolerance."""
    worst = 0.0
    for output in outputs:
        prompt, choice = output.prompt_token_ids, output.outputs[0]
        assert prompt is not None and choice.logprobs is not None
        want = reference([*prompt, *choice.token_ids])
        rows = list(enumerate(choice.logprobs, start=len(prompt) - 1))
        rows += [(i - 1, row) for i, row in enumerate(output.prompt_logprobs or []) if row]
        for position, row in rows:
            for token_id, logprob in row.items():
                worst = max(worst, abs(logprob.logprob - float(want[position, token_id])))
    assert worst < TOLERANCE
    return worst


def test_alone_and_batched(model_path, prompts, reference):
    llm = engine(model_path)
    sampling = params(with_prompt=True)
    for prompt in prompts:
        (output,) = llm.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(prompt)
        check([output], reference)
    check(llm.generate(_as_prompts(prompts), sampling, use_tqdm=False), reference)


@pytest.mark.parametrize("chunk", [16, 64])
def test_in_chunks(model_path, prompts, reference, chunk):
    llm = engine(model_path, max_num_batched_tokens=chunk, max_num_seqs=8)
    outputs = llm.generate(_as_prompts(prompts), params(with_prompt=True), use_tqdm=False)
    check(outputs, reference)


def test_with_prefix_hits(model_path, prompts, reference):
    llm = engine(model_path)
    first = llm.generate(_as_prompts(prompts), params(with_prompt=False), use_tqdm=False)
    second = llm.generate(_as_prompts(prompts), params(with_prompt=False), use_tqdm=False)
    check(first, reference)
    check(second, reference)
    hits = [output.num_cached_tokens for output in second]
    assert hits == [(len(prompt) - 1) // 16 * 16 for prompt in prompts]


def test_through_preemption(model_path, prompts, reference):
    llm = engine(model_path, num_gpu_blocks_override=132, kv_cache_memory_bytes=None)
    long_outputs = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, logprobs=20)
    some = [prompt for prompt in prompts if len(prompt) <= 300] * 2
    outputs = llm.generate(_as_prompts(some), long_outputs, use_tqdm=False)
    assert sum(output.num_preemptions for output in outputs) > 0
    check(outputs, reference)


def _as_prompts(prompts: list[list[int]]) -> list[Any]:
    return [{"prompt_token_ids": prompt} for prompt in prompts]
