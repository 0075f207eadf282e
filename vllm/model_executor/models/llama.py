# SPDX-License-Identifier: Apache-2.0
"""Llama and the many models that share its form. Reference: Transformers' modeling_llama."""

from typing import Any

from transformers import PretrainedConfig

from vllm.model_executor.models.decoder import AttentionSpec, DecoderLM, DecoderSpec

LLAMA_FIELDS = frozenset(
    {
        "attention_bias",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "mlp_bias",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "partial_rotary_factor",
        "rms_norm_eps",
        "rope_parameters",
        "tie_word_embeddings",
        "vocab_size",
    }
)


def llama_spec(
    config: PretrainedConfig,
    *,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool = False,
    windows: tuple[int | None, ...] | None = None,
) -> DecoderSpec:
    """The decoder that Llama-like fields describe; `windows` defaults to none in any layer."""
    heads: int = config.num_attention_heads
    kv_heads: int | None = config.num_key_value_heads
    head_dim: int | None = getattr(config, "head_dim", None)
    rope_parameters: dict[str, Any] = dict(config.rope_parameters)
    partial: float | None = getattr(config, "partial_rotary_factor", None)
    if partial is not None:
        rope_parameters.setdefault("partial_rotary_factor", partial)
    return DecoderSpec(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        rms_norm_eps=config.rms_norm_eps,
        hidden_act=config.hidden_act,
        mlp_bias=mlp_bias,
        tie_word_embeddings=config.tie_word_embeddings,
        rope_parameters=rope_parameters,
        max_position_embeddings=config.max_position_embeddings,
        attention=AttentionSpec(
            num_heads=heads,
            num_kv_heads=heads if kv_heads is None else kv_heads,
            head_dim=head_dim or config.hidden_size // heads,
            qkv_bias=qkv_bias,
            o_bias=o_bias,
            windows=(None,) * config.num_hidden_layers if windows is None else windows,
        ),
    )


class LlamaForCausalLM(DecoderLM):
    """Llama: grouped-query attention, rotary positions, gated MLP, RMSNorm before each part."""

    applied_fields = LLAMA_FIELDS

    @classmethod
    def decoder_spec(cls, config: PretrainedConfig) -> DecoderSpec:
        return llama_spec(
            config,
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
        )
