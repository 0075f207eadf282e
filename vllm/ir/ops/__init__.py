# SPDX-License-Identifier: Apache-2.0
"""The ops that layers call."""

from vllm.ir.ops.activation import silu_and_mul
from vllm.ir.ops.layernorm import add_rms_norm, fused_add_rms_norm_, rms_norm
from vllm.ir.ops.linear import linear
from vllm.ir.ops.rotary_embedding import rotary_embedding, rotary_embedding_

__all__ = [
    "add_rms_norm",
    "fused_add_rms_norm_",
    "linear",
    "rms_norm",
    "rotary_embedding",
    "rotary_embedding_",
    "silu_and_mul",
]
