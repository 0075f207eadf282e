# SPDX-License-Identifier: Apache-2.0
"""Every native model against Transformers: eager attention, fp32, logprobs within 1e-4.

Windows are 16 tokens and blocks 4, so the lengths lie on both sides of each edge.
"""

from typing import Any

import pytest
import torch

from tests.conftest import TinyModel
from tests.models.harness import load_model, logprobs
from tests.utils import hf_logprobs, random_token_ids

TOLERANCE = 1e-4
LENGTHS = (1, 4, 15, 16, 17, 45)

ROPE_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}
ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
ROPE_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 1024,
    "short_factor": [1.0 + 0.2 * i for i in range(8)],
    "long_factor": [9.0] * 8,
}

MODELS: list[Any] = [
    pytest.param("llama", {}, id="llama"),
    pytest.param("llama", {"tie": False}, id="llama-untied"),
    pytest.param("llama", {"attention_bias": True, "mlp_bias": True}, id="llama-biases"),
    pytest.param("llama", {"head_dim": 24, "num_key_value_heads": 1}, id="llama-head-dim"),
    pytest.param("llama", {"num_key_value_heads": 4, "hidden_act": "gelu"}, id="llama-mha-gelu"),
    pytest.param("llama", {"rms_norm_eps": 0.3}, id="llama-eps"),
    pytest.param(
        "llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}, id="theta"
    ),
    pytest.param(
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        id="linear",
    ),
    pytest.param(
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
        id="dynamic",
    ),
    pytest.param("llama", {"rope_parameters": ROPE_LLAMA3}, id="llama3"),
    pytest.param("llama", {"rope_parameters": ROPE_YARN}, id="yarn"),
    pytest.param("llama", {"rope_parameters": ROPE_LONG}, id="longrope"),
    pytest.param("mistral", {}, id="mistral"),
    pytest.param("mistral", {"sliding_window": None, "tie": False}, id="mistral-full"),
    pytest.param("qwen2", {}, id="qwen2"),
    pytest.param("qwen2", {"use_sliding_window": False}, id="qwen2-full"),
    pytest.param("qwen3", {}, id="qwen3"),
    pytest.param("qwen3", {"use_sliding_window": False, "tie": False}, id="qwen3-full"),
    pytest.param(
        "qwen3",
        {
            "attention_bias": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        id="qwen3-alternating-bias",
    ),
]


@pytest.mark.parametrize(("arch", "options"), MODELS)
def test_logprobs_equal_transformers(
    arch: str, options: dict[str, Any], tiny_model: TinyModel
) -> None:
    path = tiny_model(arch, **options)
    model, vllm_config = load_model(path)
    for length in LENGTHS:
        ids = random_token_ids(length, seed=length)
        want = hf_logprobs(path, ids)
        # A model that is sure of nothing, or of one token always, would prove little.
        assert want.std() > 0.5, "the tiny model's logprobs are too flat to tell errors apart"
        got = logprobs(model, vllm_config, ids)
        assert (got - want).abs().max() < TOLERANCE, f"{length} tokens"


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_logprobs_do_not_depend_on_chunks(arch: str, chunk: int, tiny_model: TinyModel) -> None:
    path = tiny_model(arch)
    model, vllm_config = load_model(path)
    ids = random_token_ids(37, seed=3)
    chunks = [chunk] * (37 // chunk) + ([37 % chunk] if 37 % chunk else [])
    got = logprobs(model, vllm_config, ids, chunks=chunks)
    assert (got - hf_logprobs(path, ids)).abs().max() < TOLERANCE


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_bf16_is_as_near_to_fp32_as_transformers_in_bf16(arch: str, tiny_model: TinyModel) -> None:
    path = tiny_model(arch)
    model, vllm_config = load_model(path, dtype=torch.bfloat16)
    ids = random_token_ids(40, seed=5)
    exact = hf_logprobs(path, ids)
    theirs = (hf_logprobs(path, ids, torch.bfloat16) - exact).abs()
    ours = (logprobs(model, vllm_config, ids) - exact).abs()
    assert ours.mean() < 1.25 * theirs.mean() and ours.max() < 2 * theirs.max()


@pytest.mark.parametrize("arch", ["mistral", "qwen3"])
def test_the_window_reaches_the_layers_and_matters(arch: str, tiny_model: TinyModel) -> None:
    path = tiny_model(arch)
    model, vllm_config = load_model(path)
    windows = [layer.sliding_window for layer in vllm_config.static_forward_context.values()]
    assert windows == {"mistral": [16, 16, 16], "qwen3": [None, None, 16]}[arch]
    ids = random_token_ids(40, seed=7)
    windowed = logprobs(model, vllm_config, ids)
    full = hf_logprobs(tiny_model(arch, **FULL[arch]), ids)
    torch.testing.assert_close(windowed[:16], full[:16], atol=TOLERANCE, rtol=0)
    assert (windowed[16:] - full[16:]).abs().max() > 0.1


FULL: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen3": {"use_sliding_window": False},
}
