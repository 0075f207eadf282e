# SPDX-License-Identifier: Apache-2.0
"""Qwen3, dense. Reference: Transformers' modeling_qwen3."""

import torch
from transformers import PretrainedConfig

from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.models.decoder import DecoderAttention, DecoderLM, DecoderSpec
from vllm.model_executor.models.llama import LLAMA_FIELDS, llama_spec
from vllm.model_executor.models.qwen2 import WINDOW_FIELDS, windows_of_layers


class Qwen3Attention(DecoderAttention):
    """Normalises each query and key head before it is turned."""

    def __init__(
        self, spec: DecoderSpec, rotary_emb: RotaryEmbedding, layer_idx: int, prefix: str
    ) -> None:
        super().__init__(spec, rotary_emb, layer_idx, prefix)
        self.head_dim = spec.attention.head_dim
        self.q_norm = RMSNorm(self.head_dim, spec.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, spec.rms_norm_eps)

    def turn(
        self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q_heads = q.view(-1, self.qkv_proj.num_heads, self.head_dim)
        k_heads = k.view(-1, self.qkv_proj.num_kv_heads, self.head_dim)
        q = self.q_norm(q_heads).view(q.shape)
        k = self.k_norm(k_heads).view(k.shape)
        return super().turn(positions, q, k)


class Qwen3ForCausalLM(DecoderLM):
    """Llama with a norm on each query and key head, and a window in some layers."""

    applied_fields = LLAMA_FIELDS - {"mlp_bias"} | WINDOW_FIELDS
    attention_cls = Qwen3Attention

    @classmethod
    def decoder_spec(cls, config: PretrainedConfig) -> DecoderSpec:
        return llama_spec(
            config,
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            windows=windows_of_layers(config),
        )
