# SPDX-License-Identifier: Apache-2.0
"""A configuration that asks for what a model does not apply is refused, by the field's name."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import TinyModel
from tests.models.harness import build_model, vllm_config_for
from vllm.exceptions import ConfigError
from vllm.model_executor.models.config_check import refuse_unknown_fields

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization method 'gptq'"),
    ("llama", {"pretraining_tp": 2}, "pretraining_tp=2"),
    ("llama", {"sliding_window": 16}, "sliding_window=16"),
    ("llama", {"logits_scaling": 8.0}, "logits_scaling=8.0"),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
    ("llama", {"attention_multiplier": 0.05}, "attention_multiplier=0.05"),
    ("llama", {"rope_interleaved": True}, "rope_interleaved=True"),
    ("llama", {"num_local_experts": 8}, "num_local_experts=8"),
    ("llama", {"hidden_act": "relu6"}, "hidden_act='relu6'"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
    ("mistral", {"attention_bias": True}, "attention_bias=True"),
    ("qwen2", {"use_mrope": True}, "use_mrope=True"),
    ("qwen3", {"mlp_bias": True}, "mlp_bias=True"),
    ("qwen3", {"layer_types": ["full_attention"] * 2}, "layer_types names 2 layers"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "'chunked_attention'"),
    (
        "qwen3",
        {"layer_types": ["sliding_attention"] * 3, "sliding_window": None},
        "sliding_window is not set",
    ),
]


@pytest.mark.parametrize(("arch", "fields", "named"), REFUSED)
def test_refused_by_name(
    arch: str, fields: dict[str, Any], named: str, tiny_model: TinyModel
) -> None:
    vllm_config = vllm_config_for(tiny_model(arch))
    for name, value in fields.items():
        setattr(vllm_config.model_config.hf_config, name, value)
    with pytest.raises(ConfigError, match=named):
        build_model(vllm_config)


def test_neutral_and_unrelated_fields_are_accepted(tiny_model: TinyModel) -> None:
    vllm_config = vllm_config_for(tiny_model("llama"))
    config = vllm_config.model_config.hf_config
    for name, value in {
        "attention_dropout": 0.1,
        "is_llama_config": True,
        "rope_interleaved": False,
        "quantization_config": None,
        "sliding_window": None,
        "logits_scaling": 1.0,
        "transformers.js_config": {"dtype": "q4"},
    }.items():
        setattr(config, name, value)
    build_model(vllm_config)


def test_longest_served_sequence_bounds_the_rotary_table(tiny_model: TinyModel) -> None:
    vllm_config = vllm_config_for(tiny_model("llama"))
    short = replace(vllm_config, model_config=replace(vllm_config.model_config, max_model_len=33))
    model = build_model(short)
    assert model.model.layers[0].self_attn.rotary_emb.cos_sin_cache.shape[0] == 33


def test_layers_share_one_rotary_table(tiny_model: TinyModel) -> None:
    model = build_model(vllm_config_for(tiny_model("llama")))
    assert len({id(layer.self_attn.rotary_emb) for layer in model.model.layers}) == 1


def test_a_configuration_that_declares_no_fields_is_refused_by_its_class() -> None:
    config: Any = SimpleNamespace(hidden_size=8)
    with pytest.raises(ConfigError, match="SimpleNamespace does not declare its fields"):
        refuse_unknown_fields(config, frozenset(), "LlamaForCausalLM")
