# SPDX-License-Identifier: Apache-2.0
"""The registry: lazy, open to classes from outside, clear when it refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.conftest import TinyModel
from tests.models.harness import load_model, logprobs
from tests.utils import hf_logprobs, random_token_ids
from vllm.exceptions import ConfigError
from vllm.model_executor.models import registry
from vllm.model_executor.models.interfaces import VllmModelForTextGeneration
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.registry import ModelRegistry


@pytest.fixture(autouse=True)
def registry_is_left_as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelRegistry, "_registered", {})


@pytest.mark.parametrize("architecture", sorted(registry.MODELS))
def test_every_line_resolves_to_a_generating_model(architecture: str) -> None:
    cls = ModelRegistry.resolve_model_cls(architecture)
    assert cls.__name__ == architecture
    assert issubclass(cls, VllmModelForTextGeneration)


def test_lines_are_in_alphabetical_order() -> None:
    assert list(registry.MODELS) == sorted(registry.MODELS)


def test_importing_the_registry_imports_no_torch() -> None:
    code = "import sys, vllm.model_executor.models; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_unknown_architecture_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"'FooForCausalLM' is not supported.*LlamaForCausalLM"):
        ModelRegistry.resolve_model_cls("FooForCausalLM")


class DoubledLogits(LlamaForCausalLM):
    """A model from outside the tree: sharper than its parent."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return 2 * super().compute_logits(hidden_states)


@pytest.mark.parametrize("by_name", [True, False])
def test_out_of_tree_model_is_served(by_name: bool, tiny_model: TinyModel) -> None:
    target = f"{__name__}:DoubledLogits" if by_name else DoubledLogits
    ModelRegistry.register_model("LlamaForCausalLM", target)
    path = tiny_model("llama")
    model, vllm_config = load_model(path)
    assert type(model).__name__ == "DoubledLogits"
    ids = random_token_ids(9)
    want = torch.log_softmax(2 * hf_logprobs(path, ids), dim=-1)
    assert (logprobs(model, vllm_config, ids) - want).abs().max() < 2e-4


def test_new_architecture_is_listed_and_resolved() -> None:
    ModelRegistry.register_model("FooForCausalLM", DoubledLogits)
    assert "FooForCausalLM" in ModelRegistry.get_supported_archs()
    assert ModelRegistry.resolve_model_cls("FooForCausalLM") is DoubledLogits


class NoHead(nn.Module):
    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return input_ids


def test_unusable_registrations_are_refused() -> None:
    with pytest.raises(ValueError, match='pass "module:Class"'):
        ModelRegistry.register_model("Foo", "module.Class")
    with pytest.raises(TypeError, match='pass a class or "module:Class"'):
        ModelRegistry.register_model("Foo", NoHead())  # type: ignore[arg-type]
    ModelRegistry.register_model("Foo", NoHead)
    with pytest.raises(ConfigError, match=r"NoHead.*lacks compute_logits, load_weights"):
        ModelRegistry.resolve_model_cls("Foo")
    ModelRegistry.register_model("Foo", Path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"not a subclass of torch.nn.Module"):
        ModelRegistry.resolve_model_cls("Foo")
    ModelRegistry.register_model("Foo", "no_such_module:Foo")
    with pytest.raises(ConfigError, match="cannot import Foo from no_such_module"):
        ModelRegistry.resolve_model_cls("Foo")
