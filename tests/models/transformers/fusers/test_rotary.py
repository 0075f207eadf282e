# SPDX-License-Identifier: Apache-2.0
"""Rotary functions of attention modules: found by what they do, kept where the op is not them."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

from tests.models.transformers.tiny import hf_model
from vllm.ir.ops import rotary_embedding
from vllm.model_executor.models.transformers.fusers.rotary import RotaryFunction, RotaryFuser


def attention_of(model_type: str) -> nn.Module:
    return next(m for n, m in hf_model(model_type).named_modules() if n.endswith("self_attn"))


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(dtype: torch.dtype = torch.float32, *, batch: int = 1) -> list[Tensor]:
    """Queries and keys as slices of one product, as projections give them; cosines, sines."""
    qkv = rand(batch, 7, 8 * 16).to(dtype)
    query, key, _ = qkv.split((4 * 16, 2 * 16, 2 * 16), -1)
    heads = [x.view(batch, 7, -1, 16).transpose(1, 2) for x in (query, key)]
    return heads + [rand(1, 7, 8, seed=s).repeat(1, 1, 2).to(dtype) for s in (1, 2)]


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2", "olmo2", "mimo_v2_flash"])
def test_a_rotation_by_halves_is_found(model_type: str) -> None:
    assert RotaryFuser.match(None, attention_of(model_type)) is not None


@pytest.mark.parametrize("model_type", ["cohere", "gpt_oss", "deepseek_v3"])
def test_other_rotations_are_left_alone(model_type: str) -> None:
    assert RotaryFuser.match(None, attention_of(model_type)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_op_gives_what_the_function_gives(dtype: torch.dtype) -> None:
    args = inputs(dtype)
    before = [x.clone() for x in args]
    results = RotaryFunction(refuse)(*args)
    for result, expected in zip(results, apply_rotary_pos_emb(*before), strict=True):
        assert result.shape == expected.shape
        torch.testing.assert_close(result, expected, **rotary_embedding.tolerance[dtype].kwargs)
    assert all(map(torch.equal, args, before)), "the projections must stay as they were"


def refuse(*_: Any) -> Any:
    raise AssertionError("the op takes these")


def test_the_table_follows_the_step() -> None:
    rotary = RotaryFunction(refuse)
    query, key, cos, sin = inputs()
    first, _ = rotary(query, key, cos, sin)
    other, _ = rotary(query, key, cos, -sin)
    expected, _ = apply_rotary_pos_emb(query, key, cos, -sin)
    torch.testing.assert_close(other, expected)
    assert not torch.allclose(first, other)


def test_what_the_op_does_not_take_reaches_the_function() -> None:
    query, key, cos, sin = inputs()
    unlike = cos + torch.arange(16) * 0.1  # halves that differ
    for args in ((query, key, unlike, sin), tuple(inputs(batch=2))):
        result = RotaryFunction(apply_rotary_pos_emb)(*args)
        assert all(map(torch.equal, result, apply_rotary_pos_emb(*args)))


def test_a_forward_in_an_unknown_wrapper_is_left_alone() -> None:
    class Wrapped(LlamaAttention):  # type: ignore[misc]
        @functools.wraps(LlamaAttention.forward)
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    plain = attention_of("llama")
    assert RotaryFuser.match(None, Wrapped(plain.config, 0)) is None


def test_the_class_keeps_its_function() -> None:
    first, second = attention_of("llama"), attention_of("llama")
    config: Any = None
    fuser = RotaryFuser.match(None, first)
    assert fuser is not None
    fuser.fuse(first, "a", config)
    assert isinstance(first.forward.__globals__["apply_rotary_pos_emb"], RotaryFunction)
    assert second.forward.__func__ is LlamaAttention.forward
