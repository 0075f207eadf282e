# SPDX-License-Identifier: Apache-2.0
"""The decoder that most models are: embed, N times (attention, MLP), norm, output head.

A model file says what is its own: a `DecoderSpec` made from its configuration, the fields it
applies, sometimes a part of its own. The parts are upstream's and the checkpoints' names.

Knows no cache and no batch: `Attention` finds both in the forward context.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PretrainedConfig

from vllm.config import VllmConfig
from vllm.exceptions import ConfigError
from vllm.model_executor.layers.activation import get_act_and_mul_fn
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding, get_rope
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.config_check import refuse_unknown_fields
from vllm.model_executor.models.decoder_weights import DECODER_WEIGHTS, load_decoder_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention of one decoder.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_dim: size of a head.
        qkv_bias: whether q, k and v add a bias.
        o_bias: whether the output projection adds one.
        windows: per layer, how many tokens a query sees, itself included; None: all.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool
    o_bias: bool
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """One decoder, free of any configuration class.

    Attributes:
        rope_parameters: kind of rotary embedding and its numbers.
        max_position_embeddings: longest sequence the checkpoint names, in tokens.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    rms_norm_eps: float
    hidden_act: str
    mlp_bias: bool
    tie_word_embeddings: bool
    rope_parameters: Mapping[str, Any]
    max_position_embeddings: int
    attention: AttentionSpec


class DecoderAttention(nn.Module):
    """Project, turn, attend, project back."""

    def __init__(
        self, spec: DecoderSpec, rotary_emb: RotaryEmbedding, layer_idx: int, prefix: str
    ) -> None:
        super().__init__()
        a = spec.attention
        self.qkv_proj = QKVParallelLinear(
            spec.hidden_size,
            a.head_dim,
            a.num_heads,
            a.num_kv_heads,
            bias=a.qkv_bias,
            prefix=f"{prefix}.qkv_proj",
            return_bias=False,
        )
        self.o_proj = RowParallelLinear(
            a.num_heads * a.head_dim,
            spec.hidden_size,
            bias=a.o_bias,
            prefix=f"{prefix}.o_proj",
            return_bias=False,
        )
        self.qkv_sizes = tuple(self.qkv_proj.output_partition_sizes)
        self.rotary_emb = rotary_emb
        self.attn = Attention(
            self.qkv_proj.num_heads,
            a.head_dim,
            a.head_dim**-0.5,
            num_kv_heads=self.qkv_proj.num_kv_heads,
            per_layer_sliding_window=a.windows[layer_idx],
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """[T], [T, hidden_size] -> [T, hidden_size]."""
        # Views of one product: rows are strided, which the ops and the attention accept.
        q, k, v = self.qkv_proj(hidden_states).split_with_sizes(self.qkv_sizes, -1)
        q, k = self.turn(positions, q, k)
        output: torch.Tensor = self.o_proj(self.attn(q, k, v))
        return output

    def turn(
        self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give q and k their positions, in place; models with more to do override this."""
        turned: tuple[torch.Tensor, torch.Tensor] = self.rotary_emb(positions, q, k)
        return turned


class DecoderMLP(nn.Module):
    """Gated MLP."""

    def __init__(self, spec: DecoderSpec, prefix: str) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            spec.hidden_size,
            [spec.intermediate_size] * 2,
            bias=spec.mlp_bias,
            prefix=f"{prefix}.gate_up_proj",
            return_bias=False,
        )
        self.down_proj = RowParallelLinear(
            spec.intermediate_size,
            spec.hidden_size,
            bias=spec.mlp_bias,
            prefix=f"{prefix}.down_proj",
            return_bias=False,
        )
        self.act_fn = get_act_and_mul_fn(spec.hidden_act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        output: torch.Tensor = self.down_proj(self.act_fn(self.gate_up_proj(x)))
        return output


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm; the residual stream travels beside."""

    def __init__(self, spec: DecoderSpec, self_attn: DecoderAttention, prefix: str) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = DecoderMLP(spec, f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer.

        Args:
            positions: [T].
            hidden_states: [T, hidden_size], the previous layer's output; overwritten.
            residual: [T, hidden_size], the sum before that output, updated in place; None in the
                first layer, where `hidden_states` itself becomes the residual.

        Returns:
            This layer's output, and the residual it must be added to.
        """
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        assert residual is not None, "the norm returns the residual it was given"
        return self.mlp(hidden_states), residual


class DecoderModel(nn.Module):
    """Embedding, layers, last norm."""

    def __init__(
        self,
        spec: DecoderSpec,
        attention_cls: type[DecoderAttention],
        *,
        max_model_len: int,
        prefix: str,
    ) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            spec.vocab_size, spec.hidden_size, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = get_rope(
            spec.attention.head_dim,
            max_model_len,
            rope_parameters=spec.rope_parameters,
            max_position_embeddings=spec.max_position_embeddings,
        )
        layers = []
        for i in range(spec.num_layers):
            name = f"{prefix}.layers.{i}"
            attention = attention_cls(spec, rotary_emb, i, f"{name}.self_attn")
            layers.append(DecoderLayer(spec, attention, name))
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T], [T] -> [T, hidden_size], after the last norm."""
        hidden_states: torch.Tensor = self.embed_tokens(input_ids)
        residual: torch.Tensor | None = None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        if residual is None:
            output: torch.Tensor = self.norm(hidden_states)
            return output
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class DecoderLM(nn.Module):
    """A decoder with its output head; the base of native models.

    Class attributes:
        applied_fields: fields of the configuration that `decoder_spec` applies.
        attention_cls: the attention part.
    """

    hf_to_vllm_mapper = DECODER_WEIGHTS
    applied_fields: ClassVar[frozenset[str]]
    attention_cls: ClassVar[type[DecoderAttention]] = DecoderAttention

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_text_config
        refuse_unknown_fields(config, self.applied_fields, type(self).__name__)
        spec = self.decoder_spec(config)
        _check_spec(spec)
        self.config = config
        self.model = DecoderModel(
            spec,
            self.attention_cls,
            max_model_len=vllm_config.model_config.max_model_len,
            prefix=f"{prefix}.model" if prefix else "model",
        )
        self.lm_head = ParallelLMHead(
            spec.vocab_size,
            spec.hidden_size,
            prefix=f"{prefix}.lm_head" if prefix else "lm_head",
        )
        if spec.tie_word_embeddings:
            self.lm_head.tie_weights(self.model.embed_tokens)
        self.logits_processor = LogitsProcessor(spec.vocab_size)

    @classmethod
    def decoder_spec(cls, config: PretrainedConfig) -> DecoderSpec:
        """What `config` describes.

        Raises:
            ConfigError: it describes something this model does not do.
        """
        raise NotImplementedError(f"{cls.__name__} defines no decoder_spec")

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[T] int64, [T] int64 -> [T, hidden_size]."""
        hidden_states: torch.Tensor = self.model(input_ids, positions)
        return hidden_states

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, vocab_size], fp32."""
        logits: torch.Tensor = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill the parameters; returns the names of those written.

        Raises:
            ModelLoadError: a tensor has no place, or not the shape of its place.
        """
        return load_decoder_weights(self, self.lm_head, self.model.embed_tokens, weights)


def _check_spec(spec: DecoderSpec) -> None:
    a = spec.attention
    if a.num_kv_heads < 1 or a.num_heads % a.num_kv_heads:
        raise ConfigError(
            f"num_attention_heads={a.num_heads} is not a multiple of num_key_value_heads="
            f"{a.num_kv_heads}"
        )
    if len(a.windows) != spec.num_layers:
        raise ConfigError(
            f"layer_types names {len(a.windows)} layers, num_hidden_layers={spec.num_layers}"
        )
