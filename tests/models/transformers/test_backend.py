# SPDX-License-Identifier: Apache-2.0
"""Models of Transformers served by this engine: as Transformers computes them, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.models.transformers.tiny import hf_model, largest_difference, make_model
from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear
from vllm.model_executor.models.transformers.attention_interface import VLLM_ATTN_ATTR

MakeLLM = Callable[..., Any]
TOLERANCE = 1e-4
SINK_NAMES = ("sinks", "softmax_offset", "attention_sink_bias")  # in checkpoints
# Model type -> the layers with attention sinks.
SINK_LAYERS = {
    "flint": [0, 1, 2, 3],
    "gpt_oss": [0, 1],
    "granite_swa": [0, 1, 2],
    "granitemoe_swa": [0, 1, 2],
    "mimo_v2_flash": [1, 2],
}


def count_modules(model: nn.Module, kind: type[nn.Module]) -> int:
    """How many submodules of `kind` the module tree holds."""
    return sum(isinstance(module, kind) for module in model.modules())


def check_implementation(llm: Any, model_type: str) -> nn.Module:
    """Prove that the engine runs Transformers' modules with its own attention, and return it."""
    [model] = llm.apply_model(lambda model: model)
    assert type(model).__module__ == "vllm.model_executor.models.transformers"
    num_layers = model.config.num_hidden_layers
    assert count_modules(model, Attention) == num_layers
    callers = [m for m in model.modules() if VLLM_ATTN_ATTR in m._modules]
    attention = [m for m in callers if isinstance(m.get_submodule(VLLM_ATTN_ATTR), Attention)]
    assert len(attention) == num_layers
    assert all(type(m).__module__.startswith("transformers.") for m in attention)
    assert model.hf_model.config.model_type == model_type
    return model


@pytest.mark.parametrize(
    "model_type",
    [
        *("llama", "gpt2", "cohere", "gemma2", "granite", "olmo2", "phi3", "qwen3", "qwen3_moe"),
        *SINK_LAYERS,
    ],
)
def test_logprobs_are_those_of_transformers(model_type: str, make_llm: MakeLLM) -> None:
    llm = make_llm(model_type)
    check_implementation(llm, model_type)
    assert largest_difference(llm, hf_model(model_type)) < TOLERANCE


@pytest.mark.parametrize("model_type", SINK_LAYERS)
def test_sinks(model_type: str, tmp_path: Path, make_llm: MakeLLM) -> None:
    """Each layer that has sinks applies those of the checkpoint, in the one parameter there is."""
    path = make_model(tmp_path / model_type, model_type)
    stored = {
        int(name.split(".")[2]): sinks
        for name, sinks in load_file(path / "model.safetensors").items()
        if name.endswith(SINK_NAMES)
    }
    assert sorted(stored) == SINK_LAYERS[model_type]
    model = check_implementation(make_llm(model_type, path=path), model_type)
    parameters = dict(model.named_parameters())
    assert sum("sinks" in name for name in model.state_dict()) == len(stored)
    for index, caller in enumerate(model.model.layers):
        layer = caller.self_attn.get_submodule(VLLM_ATTN_ATTR)
        assert isinstance(layer, Attention)
        assert layer.has_sink is (index in stored)
        if index in stored:
            assert layer.sinks is parameters[f"model.layers.{index}.self_attn.sinks"]
            assert layer.impl.sinks is layer.sinks
            assert torch.equal(layer.sinks, stored[index])


def test_layers_get_the_window_scale_and_cap_that_their_module_asks_for(make_llm: MakeLLM) -> None:
    model = check_implementation(make_llm("gemma2"), "gemma2")
    layers = [m for m in model.modules() if isinstance(m, Attention)]
    assert [layer.sliding_window for layer in layers] == [8, None]
    assert {layer.scale for layer in layers} == {7**-0.5}
    assert {layer.logits_soft_cap for layer in layers} == {50.0}


def test_pieces_become_engine_layers(make_llm: MakeLLM) -> None:
    model = check_implementation(make_llm("llama"), "llama")
    assert count_modules(model, QKVParallelLinear) == 2
    assert count_modules(model, MergedColumnParallelLinear) == 4  # two of them are the former
    assert count_modules(model, RMSNorm) == 5
    assert count_modules(model, nn.Linear) == 0
    assert model.packed_modules_mapping == {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }


def test_auto_takes_the_own_code_where_there_is_one(make_llm: MakeLLM) -> None:
    [native] = make_llm("llama", model_impl="auto").apply_model(type)
    assert native.__module__ == "vllm.model_executor.models.llama"


def test_auto_takes_transformers_where_there_is_none(make_llm: MakeLLM) -> None:
    [backend] = make_llm("olmo2", model_impl="auto").apply_model(type)
    assert backend.__name__ == "TransformersForCausalLM"


@pytest.mark.parametrize("tie", [True, False])
def test_tying_follows_the_configuration(tie: bool, tmp_path: Path, make_llm: MakeLLM) -> None:
    path = make_model(tmp_path / "m", "llama", tie_word_embeddings=tie)
    llm = make_llm("llama", path=path)
    [shared] = llm.apply_model(lambda m: m.lm_head.weight is m.model.embed_tokens.weight)
    assert shared is tie
    assert largest_difference(llm, hf_model("llama", tie_word_embeddings=tie)) < TOLERANCE


def test_what_must_stay_fp32_does(make_llm: MakeLLM) -> None:
    llm = make_llm("deepseek_v3", dtype="bfloat16")
    [dtypes] = llm.apply_model(lambda m: {n: p.dtype for n, p in m.named_parameters()})
    fp32 = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert fp32 == {"model.layers.1.mlp.gate.weight"}
    assert {*dtypes.values()} == {torch.float32, torch.bfloat16}


def test_a_missing_head_that_is_not_tied_stops_the_load(tmp_path: Path, make_llm: MakeLLM) -> None:
    path = make_model(tmp_path / "m", "llama", tie_word_embeddings=False)
    rewrite(path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight is not in the checkpoint"):
        make_llm("llama", path=path)


def test_an_unknown_tensor_stops_the_load(tmp_path: Path, make_llm: MakeLLM) -> None:
    path = make_model(tmp_path / "m", "llama")
    rewrite(path, lambda tensors: tensors.update({"model.extra.weight": torch.ones(3)}))
    with pytest.raises(ModelLoadError, match=r"model\.extra\.weight.*no place"):
        make_llm("llama", path=path)


def test_a_missing_expert_stops_the_load(tmp_path: Path, make_llm: MakeLLM) -> None:
    path = make_model(tmp_path / "m", "qwen3_moe")
    rewrite(path, lambda t: t.pop("model.layers.1.mlp.experts.3.up_proj.weight"))
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.experts"):
        make_llm("qwen3_moe", path=path)


@pytest.mark.parametrize(
    ("model_type", "overrides", "reason"),
    [
        ("bert", {"is_decoder": False}, "bidirectional"),
        ("bloom", {}, "0 attend through"),
        ("mamba", {}, "keep a state"),
        ("llama4_text", {}, "chunked_attention"),
        ("bart", {"is_decoder": True}, "position_ids|encoder-decoder"),
    ],
)
def test_what_cannot_be_applied_is_refused_before_weights_are_read(
    model_type: str, overrides: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    from transformers import CONFIG_MAPPING, AutoConfig

    config = CONFIG_MAPPING[model_type](**overrides)
    config.architectures = ["Anything"]
    config.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), type(config))
    from vllm import LLM

    with pytest.raises(ConfigError, match=reason):
        LLM(
            str(tmp_path),
            model_impl="transformers",
            dtype="float32",
            load_format="dummy",  # there are no weights to read
            skip_tokenizer_init=True,
            max_model_len=64,
            kv_cache_memory_bytes=1 << 22,
        )


def test_a_quantized_checkpoint_is_refused_by_its_method(tmp_path: Path, make_llm: MakeLLM) -> None:
    path = make_model(tmp_path / "m", "llama")
    with pytest.raises(ConfigError, match="awq"):
        make_llm("llama", path=path, hf_overrides={"quantization_config": {"quant_method": "awq"}})


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a checkpoint in one file."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
