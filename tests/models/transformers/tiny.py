# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints of Transformers models, and what Transformers says about them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.utils import randomize

COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,
}
_HEAD = {"head_dim": 16}
_GRANITE = {
    "logits_scaling": 8.0,
    "attention_multiplier": 0.05,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "gpt2": {
        "vocab_size": 128,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "granite": COMMON | _GRANITE,
    "gemma2": COMMON | _HEAD | {"sliding_window": 8, "query_pre_attn_scalar": 7},
    "cohere": COMMON | {"logit_scale": 0.25},
    "olmo2": COMMON,
    "phi3": COMMON,
    "qwen3": COMMON | _HEAD,
    "qwen3_moe": COMMON | _HEAD | _EXPERTS | {"num_experts": 4},
    "mixtral": COMMON | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": COMMON
    | _HEAD
    | {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite_swa": COMMON | _GRANITE | {"sliding_window": 8, "num_hidden_layers": 3},
    "granitemoe_swa": COMMON
    | _GRANITE
    | {
        "sliding_window": 8,
        "num_hidden_layers": 3,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
    },
    "flint": COMMON
    | _HEAD
    | _EXPERTS
    | {
        "sliding_window": 8,
        "num_hidden_layers": 4,
        "num_experts": 4,
        "shared_expert_intermediate_size": 32,
    },
    # Layers without and with sinks, which have other numbers of key/value heads.
    "mimo_v2_flash": COMMON
    | _HEAD
    | _EXPERTS
    | {
        "num_key_value_heads": 1,
        "v_head_dim": 12,
        "sliding_window": 8,
        "num_hidden_layers": 3,
        "n_routed_experts": 4,
    },
    "deepseek_v3": COMMON
    | _EXPERTS
    | {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
}
# On both sides of the window (8) and the block (16), and longer than a step of 16 tokens.
PROMPT_LENGTHS = (1, 7, 8, 9, 15, 17, 40)


def make_model(
    path: Path, model_type: str, *, dtype: torch.dtype = torch.float32, **overrides: Any
) -> Path:
    """Write a checkpoint of `model_type` whose every weight matters."""
    model = hf_model(model_type, **overrides)
    model.to(dtype).save_pretrained(path)
    return path


def hf_model(model_type: str, **overrides: Any) -> Any:
    """The Transformers model with the weights of `make_model`."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[model_type](**(MODELS[model_type] | overrides))
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    randomize(model)
    randomize_sinks(model)
    return model


def randomize_sinks(model: nn.Module) -> None:
    """Draw attention sinks from [-3, 4]: from hardly there to most of the weight."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if name.endswith("sinks"):
                param.copy_(torch.rand(param.shape, generator=generator) * 7 - 3)


def prompts() -> list[list[int]]:
    """One prompt of each length."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 128, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]


@torch.no_grad()
def reference_logprobs(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """Logprobs after each token: [n, V], fp32."""
    logits: torch.Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def largest_difference(llm: Any, model: Any) -> float:
    """Between the engine's logprobs, prompts and eight greedy tokens, and those of `model`."""
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=8,
        temperature=0,
        prompt_logprobs=0,
        logprobs=0,
        ignore_eos=True,
        detokenize=False,
    )
    inputs = [{"prompt_token_ids": p} for p in prompts()]
    largest = 0.0
    for prompt, output in zip(prompts(), llm.generate(inputs, params, use_tqdm=False), strict=True):
        completion = output.outputs[0]
        token_ids = prompt + list(completion.token_ids)
        expected = reference_logprobs(model, token_ids)
        found = [*output.prompt_logprobs[1:], *completion.logprobs]
        assert len(found) == len(token_ids) - 1
        for position, (token, entry) in enumerate(zip(token_ids[1:], found, strict=True)):
            largest = max(largest, abs(entry[token].logprob - float(expected[position, token])))
    return largest
