# SPDX-License-Identifier: Apache-2.0
"""Attention sinks in whole models: applied, reloaded in place, or refused by their reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

from tests.models.transformers.tiny import hf_model, largest_difference, make_model
from vllm.exceptions import ConfigError
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.transformers import check_sinks
from vllm.v1.attention import registry
from vllm.v1.attention.backends.torch_ref import TorchRefBackend

MakeLLM = Callable[..., Any]
TOLERANCE = 1e-4


def attention_layers(model: nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


def test_the_sinks_of_these_models_matter(make_llm: MakeLLM) -> None:
    """Without this the closeness of logprobs would show nothing."""
    llm = make_llm("gpt_oss")
    other = hf_model("gpt_oss")
    with torch.no_grad():
        for name, param in other.named_parameters():
            if name.endswith("sinks"):
                param.fill_(-1e4)
    assert largest_difference(llm, other) > 100 * TOLERANCE


def test_other_sizes_of_step_and_block_change_nothing(make_llm: MakeLLM) -> None:
    for sizes in ({"max_num_batched_tokens": 5}, {"block_size": 4}, {"block_size": 32}):
        assert largest_difference(make_llm("gpt_oss", **sizes), hf_model("gpt_oss")) < TOLERANCE


def test_strict_fp32_sinks_stay_fp32_and_others_follow_the_model(make_llm: MakeLLM) -> None:
    for model_type, dtype in (("flint", torch.float32), ("gpt_oss", torch.bfloat16)):
        [model] = make_llm(model_type, dtype="bfloat16").apply_model(lambda m: m)
        assert {layer.sinks.dtype for layer in attention_layers(model)} == {dtype}
        assert model.model.embed_tokens.weight.dtype == torch.bfloat16


def test_a_bf16_checkpoint_gives_its_rounded_sinks(tmp_path: Path, make_llm: MakeLLM) -> None:
    path = make_model(tmp_path / "m", "gpt_oss", dtype=torch.bfloat16)
    llm = make_llm("gpt_oss", path=path)
    model = hf_model("gpt_oss")
    for param in model.parameters():  # not the buffers: rotary frequencies are not stored
        param.data = param.data.bfloat16().float()
    assert largest_difference(llm, model) < TOLERANCE


def test_a_reload_reaches_the_layers_in_place(tmp_path: Path, make_llm: MakeLLM) -> None:
    path = make_model(tmp_path / "m", "gpt_oss")
    llm = make_llm("gpt_oss", path=path)
    changed = hf_model("gpt_oss")
    with torch.no_grad():
        for name, param in changed.named_parameters():
            if name.endswith("sinks"):
                param.copy_(2 - param)
    weights = [(name, p.detach().clone()) for name, p in changed.named_parameters()]
    before = llm.apply_model(lambda m: [p.sinks.data_ptr() for p in attention_layers(m)])
    assert largest_difference(llm, changed) > 100 * TOLERANCE
    llm.apply_model(lambda model: model.load_weights(iter(weights)))
    llm.reset_prefix_cache()
    assert llm.apply_model(lambda m: [p.sinks.data_ptr() for p in attention_layers(m)]) == before
    assert largest_difference(llm, changed) < TOLERANCE


@pytest.mark.parametrize("size", [1, 3, 8])
def test_sinks_of_another_number_stop_the_load(
    size: int, tmp_path: Path, make_llm: MakeLLM
) -> None:
    path = make_model(tmp_path / "m", "gpt_oss")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.self_attn.sinks"] = torch.zeros(size)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"layers\.1\.self_attn\.sinks.*\[{size}\]"):
        make_llm("gpt_oss", path=path)


def test_missing_sinks_stop_the_load(tmp_path: Path, make_llm: MakeLLM) -> None:
    path = make_model(tmp_path / "m", "gpt_oss")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.0.self_attn.sinks"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn\.sinks"):
        make_llm("gpt_oss", path=path)


class NoSinksBackend(TorchRefBackend):
    @staticmethod
    def get_name() -> str:
        return "NO_SINKS"

    @classmethod
    def supports_sink(cls) -> bool:
        return False


def test_a_backend_without_sinks_is_refused_with_the_reason(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.BACKENDS, "NO_SINKS", f"{__name__}:NoSinksBackend")
    make_llm("llama", attention_backend="NO_SINKS")
    with pytest.raises(ConfigError, match=r"NO_SINKS.*attention sinks"):
        make_llm("gpt_oss", attention_backend="NO_SINKS")


def test_sinks_that_the_source_does_not_name_are_refused(
    make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass on meta sees what is passed, whatever was read."""
    monkeypatch.setattr(
        "vllm.model_executor.models.transformers.base.AttentionFuser.sinks", lambda *_: None
    )
    with pytest.raises(ConfigError, match=r"self_attn.*passes \(some of shape \[4\]\)"):
        make_llm("gpt_oss")


def test_an_exchanged_parameter_ends_requests_at_the_next_step(
    make_llm: MakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    llm = make_llm("gpt_oss")
    assert largest_difference(llm, hf_model("gpt_oss")) < TOLERANCE

    def exchange(model: nn.Module) -> None:
        attention = model.model.layers[1].self_attn
        assert isinstance(attention, GptOssAttention)
        attention.sinks = nn.Parameter(attention.sinks.detach().clone(), requires_grad=False)

    llm.apply_model(exchange)
    [output] = llm.generate({"prompt_token_ids": [5, 6, 7]}, use_tqdm=False)
    assert output.outputs[0].finish_reason == "error"
    assert (
        "layers.1.self_attn.attn: the attention sinks that the model passes are not" in caplog.text
    )


def test_both_sides_must_agree_on_sinks(make_llm: MakeLLM) -> None:
    [model] = make_llm("mimo_v2_flash").apply_model(lambda m: m)
    without, having, _ = attention_layers(model)
    check_sinks(without, None)
    check_sinks(having, having.sinks)
    with pytest.raises(ValueError, match=r"layers\.0.*would be dropped"):
        check_sinks(without, having.sinks)
    with pytest.raises(ValueError, match=r"layers\.1.*did not pass"):
        check_sinks(having, None)
    with pytest.raises(ValueError, match=r"layers\.1.*not the parameter"):
        check_sinks(having, having.sinks.detach().clone())


def test_a_bidirectional_model_with_sinks_is_refused(tmp_path: Path, make_llm: MakeLLM) -> None:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING["openai_privacy_filter"](num_hidden_layers=2)
    config.architectures = ["OpenAIPrivacyFilterForTokenClassification"]
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"bidirectional|no causal language model"):
        make_llm("", path=tmp_path, load_format="dummy")
