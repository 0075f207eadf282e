# SPDX-License-Identifier: Apache-2.0
"""From a folder or file to a filled module, by format."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import TinyModel
from tests.model_executor.model_loader.gguf_files import write_gguf
from tests.utils import load_hf
from vllm.config import LoadConfig, ModelConfig
from vllm.exceptions import ConfigError
from vllm.model_executor.model_loader import (
    DefaultModelLoader,
    DummyModelLoader,
    GGUFModelLoader,
    get_model_loader,
)
from vllm.model_executor.model_loader.weight_utils import AutoWeightsLoader


def config_for(path: Path, model: Any) -> ModelConfig:
    return ModelConfig(
        model=str(path), path=path, served_model_name=("m",), tokenizer=str(path),
        hf_config=model.config, architecture="A", dtype=torch.float32, max_model_len=8,
        vocab_size=model.config.vocab_size,
    )  # fmt: skip


def empty_like(model: Any) -> Any:
    """The same Transformers model with weights of NaN, loadable by name."""
    import transformers

    made = getattr(transformers, type(model).__name__)(model.config)
    with torch.no_grad():
        for param in made.parameters():
            param.fill_(float("nan"))
    made.load_weights = AutoWeightsLoader(made).load_weights
    return made


def equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.named_parameters(), b.named_parameters(), strict=True)
    return all(n == m and torch.equal(p, q) for (n, p), (m, q) in pairs)


@pytest.mark.parametrize("options", [{}, {"sharded": True}, {"tie": False}])
def test_safetensors_folder(options: dict[str, Any], tiny_model: TinyModel) -> None:
    path = tiny_model("llama", **options)
    model = load_hf(path)
    made = empty_like(model)
    loader = get_model_loader(LoadConfig())
    assert type(loader) is DefaultModelLoader
    loader.load_weights(made, config_for(path, model))
    assert equal(made, model)


@pytest.mark.parametrize("load_format", ["auto", "gguf"])
@pytest.mark.parametrize("tie", [True, False])
def test_gguf_file(load_format: Any, tie: bool, tiny_model: TinyModel, tmp_path: Path) -> None:
    model = load_hf(tiny_model("llama", tie=tie))
    path = write_gguf(tmp_path / "m.gguf", model)
    loader = get_model_loader(LoadConfig(load_format=load_format))
    assert (type(loader) is GGUFModelLoader) is (load_format == "gguf")
    for place in (path, tmp_path):
        made = empty_like(model)
        loader.load_weights(made, config_for(place, model))
        assert equal(made, model)


def test_dummy_weights_depend_on_the_name_alone(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    model = load_hf(path)
    first, second = empty_like(model), empty_like(model)
    loader = get_model_loader(LoadConfig(load_format="dummy"))
    assert type(loader) is DummyModelLoader
    torch.manual_seed(1)
    loader.load_weights(first, config_for(path, model))
    torch.manual_seed(2)
    loader.load_weights(second, config_for(path, model))
    assert equal(first, second)
    for name, param in first.named_parameters():
        assert torch.isfinite(param).all(), name
        scale = param.std() * (param.shape[-1] ** 0.5 if param.dim() > 1 else 10)
        assert 0.5 < scale < 1.5, name
    layers = first.model.layers
    assert not torch.equal(layers[0].self_attn.q_proj.weight, layers[1].self_attn.q_proj.weight)


def test_dummy_refuses_what_it_cannot_draw() -> None:
    model = torch.nn.Module()
    model.codes = torch.nn.Parameter(torch.zeros(3, dtype=torch.int32), requires_grad=False)
    loader = DummyModelLoader(LoadConfig(load_format="dummy"))
    with pytest.raises(ConfigError, match=r"codes: .*torch\.int32"):
        loader.load_weights(model, None)  # type: ignore[arg-type]
