# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: a table of cosines and sines, and the layer that applies it.

The table is fp32 whatever the model's dtype, as the op takes it; it is small. It is
derived from the configuration alone, so it is a non-persistent buffer: no checkpoint holds it.
The turn itself is the `rotary_embedding_` op; `rope_frequencies` knows the kinds.
"""

from collections.abc import Mapping
from typing import Any

import torch

from vllm.exceptions import ConfigError
from vllm.ir.ops import rotary_embedding_
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.rope_frequencies import RopeInput, rope_frequencies


@CustomOp.register("rotary_embedding")
class RotaryEmbedding(CustomOp):
    """Turns query and key heads in place by their positions."""

    cos_sin_cache: torch.Tensor

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position: int,
        *,
        inv_freq: torch.Tensor,
        scale: float = 1.0,
        is_neox_style: bool = True,
    ) -> None:
        """Fill the table.

        Args:
            head_size: size of a query and key head.
            rotary_dim: leading entries of a head that are turned.
            max_position: number of positions in the table.
            inv_freq: [rotary_dim / 2] fp32.
            scale: factor on cosine and sine.
            is_neox_style: pairs are (i, i + rotary_dim / 2); else neighbours (2 i, 2 i + 1).
        """
        super().__init__()
        self.head_size = head_size
        self.rotary_dim = rotary_dim
        self.max_position = max_position
        self.is_neox_style = is_neox_style
        positions = torch.arange(max_position, dtype=torch.float32)
        angles = torch.outer(positions, inv_freq.to(positions.device))
        table = torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)
        self.register_buffer("cos_sin_cache", table, persistent=False)

    def forward_native(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Turn in place.

        Args:
            positions: [T] int64, each below `max_position`.
            query: [T, heads * head_size]; last dim contiguous, rows may be strided.
            key: [T, kv_heads * head_size]; likewise.
        """
        rotary_embedding_(
            positions, query, key, self.cos_sin_cache, self.head_size, self.is_neox_style
        )
        return query, key

    def extra_repr(self) -> str:
        return (
            f"head_size={self.head_size}, rotary_dim={self.rotary_dim}, "
            f"max_position={self.max_position}, is_neox_style={self.is_neox_style}"
        )


def get_rope(
    head_size: int,
    max_position: int,
    *,
    rope_parameters: Mapping[str, Any],
    is_neox_style: bool = True,
    rotary_dim: int | None = None,
    max_position_embeddings: int | None = None,
) -> RotaryEmbedding:
    """Build the rotary embedding that a checkpoint asks for.

    Each call builds its own table: layers of one model share by passing the layer around, so that
    nothing outlives the model.

    Args:
        head_size: size of a query and key head.
        max_position: longest sequence served, in tokens; the length of the table.
        rope_parameters: `rope_type` (default "default"), `rope_theta`, and what the kind needs.
        is_neox_style: see `RotaryEmbedding`.
        rotary_dim: entries turned; default: `partial_rotary_factor` of the head, else all.
        max_position_embeddings: the checkpoint's limit, in tokens; default: `max_position`.

    Raises:
        ConfigError: the kind or one of its parameters is not supported; the message names it.
    """
    if rotary_dim is None:
        rotary_dim = int(head_size * (rope_parameters.get("partial_rotary_factor") or 1.0))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise ConfigError(f"rotary_dim={rotary_dim}: pass an even number up to {head_size}")
    inv_freq, scale = rope_frequencies(
        RopeInput(
            parameters=rope_parameters,
            dim=rotary_dim,
            max_model_len=max_position,
            max_position_embeddings=max_position_embeddings or max_position,
        )
    )
    return RotaryEmbedding(
        head_size,
        rotary_dim,
        max_position,
        inv_freq=inv_freq,
        scale=scale,
        is_neox_style=is_neox_style,
    )
