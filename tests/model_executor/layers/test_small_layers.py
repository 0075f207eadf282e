# SPDX-License-Identifier: Apache-2.0
"""Norm, activations, embedding, output head and logits."""

import pytest
import torch
import torch.nn.functional as F

from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.layers.activation import get_act_and_mul_fn
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)


def test_norm_matches_torch_and_ignores_the_scale_of_its_input() -> None:
    norm = RMSNorm(16, 1e-12)
    norm.weight.copy_(torch.randn(16))
    x = torch.randn(5, 16)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (16,), norm.weight, 1e-12))
    torch.testing.assert_close(norm(x), norm(x * 64))


def test_norm_with_residual_updates_both_in_place() -> None:
    norm = RMSNorm(16, 1e-5)
    norm.weight.copy_(torch.randn(16))
    x, residual = torch.randn(5, 16), torch.randn(5, 16)
    total = x + residual
    out, new_residual = norm(x, residual)
    assert out.data_ptr() == x.data_ptr() and new_residual.data_ptr() == residual.data_ptr()
    torch.testing.assert_close(new_residual, total)
    torch.testing.assert_close(out, F.rms_norm(total, (16,), norm.weight, 1e-5))


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("name", ["silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new"])
def test_gated_activation_is_the_plain_one_times_the_other_half(name: str) -> None:
    x = torch.randn(3, 14)
    plain = {"silu": F.silu, "swish": F.silu, "gelu": F.gelu}.get(name, tanh_gelu)
    want = plain(x[:, :7]) * x[:, 7:]
    torch.testing.assert_close(get_act_and_mul_fn(name)(x), want)


def test_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"hidden_act='relu6'.*supported are gelu"):
        get_act_and_mul_fn("relu6")


def test_padded_vocabulary_never_shows() -> None:
    head = ParallelLMHead(70, 8, padding_size=64, prefix="lm_head")
    assert head.weight.shape == (128, 8)
    weight = torch.randn(70, 8)
    head.weight.fill_(float("nan"))
    head.weight.weight_loader(head.weight, weight)
    hidden = torch.randn(2, 8)
    logits = LogitsProcessor(70)(head, hidden)
    torch.testing.assert_close(logits, hidden @ weight.T)
    assert logits.is_contiguous()
    assert torch.equal(head.weight[70:], torch.zeros(58, 8))


def test_embedding_refuses_another_vocabulary() -> None:
    embedding = VocabParallelEmbedding(70, 8, padding_size=64, prefix="embed_tokens")
    with pytest.raises(ModelLoadError, match=r"embed_tokens.weight.*\[128, 8\].*needs \[70, 8\]"):
        embedding.weight.weight_loader(embedding.weight, torch.zeros(128, 8))


def test_tied_head_has_one_storage_and_can_be_parted() -> None:
    embedding, head = VocabParallelEmbedding(10, 4), ParallelLMHead(10, 4)
    head.tie_weights(embedding)
    assert head.weight is embedding.weight
    head.untie_weights()
    assert head.weight.data_ptr() != embedding.weight.data_ptr()
    head.weight.weight_loader(head.weight, torch.ones(10, 4))
    assert torch.equal(head.weight, torch.ones(10, 4))


def test_logits_are_fp32_capped_then_scaled_and_keep_the_head_bias() -> None:
    head = ParallelLMHead(10, 4, bias=True, params_dtype=torch.bfloat16)
    weight, bias = torch.randn(10, 4).bfloat16(), torch.randn(10).bfloat16()
    head.weight.weight_loader(head.weight, weight)
    head.bias.weight_loader(head.bias, bias)
    hidden = torch.randn(3, 4).bfloat16()
    logits = LogitsProcessor(10, scale=0.5, soft_cap=2.0)(head, hidden)
    raw = F.linear(hidden, weight, bias).float()
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, torch.tanh(raw / 2.0) * 2.0 * 0.5)
