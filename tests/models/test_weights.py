# SPDX-License-Identifier: Apache-2.0
"""Loading faults are named; tying follows configuration and checkpoint."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.conftest import TinyModel
from tests.models.harness import build_model, checkpoint, load_model, logprobs, vllm_config_for
from tests.utils import hf_logprobs, random_token_ids
from vllm.exceptions import ModelLoadError
from vllm.model_executor.model_loader import get_model_loader

Q = "model.layers.1.self_attn.q_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"


def load(path: Path, weights: dict[str, torch.Tensor]) -> tuple[nn.Module, set[str]]:
    model = build_model(vllm_config_for(path))
    return model, model.load_weights(weights.items())  # type: ignore[operator]


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [True, False])
def test_every_parameter_is_written(arch: str, tie: bool, tiny_model: TinyModel) -> None:
    path = tiny_model(arch, tie=tie)
    weights = checkpoint(path)
    assert ("lm_head.weight" in weights) is not tie
    model, written = load(path, weights)
    assert written == {name for name, _ in model.named_parameters()}


def test_order_of_tensors_does_not_matter(tiny_model: TinyModel) -> None:
    path = tiny_model("llama", tie=False)
    forward, _ = load(path, checkpoint(path))
    backward, _ = load(path, dict(reversed(checkpoint(path).items())))
    for (name, a), (_, b) in zip(
        forward.named_parameters(), backward.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name


def test_unexpected_tensor_is_named(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    extra = {"model.layers.0.self_attn.sinks": torch.zeros(4)}
    with pytest.raises(ModelLoadError, match=r"model\.layers\.0\.self_attn\.sinks"):
        load(path, checkpoint(path) | extra)


def test_bias_the_configuration_does_not_announce_is_named(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    extra = {"lm_head.bias": torch.zeros(512)}
    with pytest.raises(ModelLoadError, match=r"lm_head\.bias"):
        load(path, checkpoint(path) | extra)
    with pytest.raises(ModelLoadError, match=r"qkv_proj\.bias|q_proj\.bias"):
        load(path, checkpoint(path) | {Q.replace("weight", "bias"): torch.zeros(64)})


def test_renamed_tensor_is_named(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    weights = checkpoint(path)
    weights[DOWN.replace("down_proj", "downward")] = weights.pop(DOWN)
    with pytest.raises(ModelLoadError, match="downward"):
        load(path, weights)


@pytest.mark.parametrize("name", [Q, DOWN, "model.norm.weight", "model.embed_tokens.weight"])
def test_misshaped_tensor_is_named(name: str, tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    weights = checkpoint(path)
    shape = list(weights[name].shape)
    weights[name] = torch.zeros(shape[0] + 1, *shape[1:])
    with pytest.raises(ModelLoadError) as raised:
        load(path, weights)
    message = str(raised.value)
    assert str([shape[0] + 1, *shape[1:]])[1:-1] in message and str(shape)[1:-1] in message
    assert ("qkv_proj" if name == Q else name.split(".")[-2]) in message


def test_missing_tensor_shows_in_what_was_written(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    weights = checkpoint(path)
    del weights[DOWN]
    model, written = load(path, weights)
    assert {name for name, _ in model.named_parameters()} - written == {DOWN}


def test_derived_tables_in_old_checkpoints_are_ignored(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    model, written = load(path, checkpoint(path) | extra)
    assert written == {name for name, _ in model.named_parameters()}


def test_tied_flag_with_equal_head_in_the_file_stays_tied(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    weights = checkpoint(path)
    head = {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    model, written = load(path, head | weights)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert written == {name for name, _ in model.named_parameters()}


def test_tied_flag_with_the_head_alone_fills_the_embedding(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    weights = checkpoint(path)
    embedding = weights.pop("model.embed_tokens.weight")
    model, written = load(path, weights | {"lm_head.weight": embedding})
    assert torch.equal(model.model.embed_tokens.weight, embedding)
    assert written == {name for name, _ in model.named_parameters()}


def test_tied_flag_with_another_head_is_parted_as_transformers_does(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = tiny_model("llama")
    weights = checkpoint(path)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].flip(0)
    load_from_disk(path, tmp_path, weights)
    model, vllm_config = load_model(tmp_path)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    ids = random_token_ids(12)
    difference = logprobs(model, vllm_config, ids) - hf_logprobs(tmp_path, ids)
    assert difference.abs().max() < 1e-4


def test_untied_flag_without_a_head_leaves_the_head_unwritten(tiny_model: TinyModel) -> None:
    path = tiny_model("llama", tie=False)
    weights = checkpoint(path)
    del weights["lm_head.weight"]
    model, written = load(path, weights)
    assert {name for name, _ in model.named_parameters()} - written == {"lm_head.weight"}


def test_reload_writes_the_same_storage(tiny_model: TinyModel) -> None:
    path, other = tiny_model("llama"), tiny_model("llama", seed=1)
    model, vllm_config = load_model(path)
    before = {name: param.data_ptr() for name, param in model.named_parameters()}

    def one_pass() -> Iterator[tuple[str, torch.Tensor]]:
        yield from checkpoint(other).items()

    model.load_weights(one_pass())  # type: ignore[operator]
    assert {name: param.data_ptr() for name, param in model.named_parameters()} == before
    ids = random_token_ids(12)
    difference = logprobs(model, vllm_config, ids) - hf_logprobs(other, ids)
    assert difference.abs().max() < 1e-4


def load_from_disk(config_of: Path, folder: Path, weights: dict[str, torch.Tensor]) -> nn.Module:
    """Load through the loader, which accounts for every tensor and every parameter."""
    for file in config_of.glob("*.json"):
        (folder / file.name).write_text(file.read_text())
    contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    vllm_config = vllm_config_for(folder)
    model = build_model(vllm_config)
    get_model_loader(vllm_config.load_config).load_weights(model, vllm_config.model_config)
    return model


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accounting_finds_a_whole_checkpoint_whole(
    arch: str, tie: bool, dtype: torch.dtype, tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = tiny_model(arch, tie=tie)
    weights = {name: tensor.to(dtype) for name, tensor in checkpoint(path).items()}
    model = load_from_disk(path, tmp_path, weights)
    assert torch.equal(model.model.norm.weight, weights["model.norm.weight"].float())


@pytest.mark.parametrize("kind", ["equal", "different", "alone"])
def test_accounting_agrees_with_how_a_tied_head_is_loaded(
    kind: str, tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = tiny_model("llama")
    weights = checkpoint(path)
    embedding = weights["model.embed_tokens.weight"]
    head = {"lm_head.weight": embedding.flip(0) if kind == "different" else embedding.clone()}
    if kind == "alone":
        del weights["model.embed_tokens.weight"]
    model = load_from_disk(path, tmp_path, weights | head)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is (kind != "different")
    assert torch.equal(model.lm_head.weight, head["lm_head.weight"])
    assert torch.equal(model.model.embed_tokens.weight, embedding)


@pytest.mark.parametrize(
    "name", [Q, DOWN, "model.layers.2.self_attn.v_proj.bias", "lm_head.weight", "model.norm.weight"]
)
def test_accounting_names_what_is_missing(name: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tiny_model("llama", tie=False, attention_bias=True)
    weights = checkpoint(path)
    del weights[name]
    fused = re.sub(r"\.[qv]_proj", ".qkv_proj", name)
    with pytest.raises(ModelLoadError, match=re.escape(fused)):
        load_from_disk(path, tmp_path, weights)
