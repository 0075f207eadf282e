# SPDX-License-Identifier: Apache-2.0
"""The Transformers modeling backend: any decoder that Transformers can build, right or refused."""

from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vllm.model_executor.models.transformers.attention_interface import (
    VLLM_ATTN_ATTR,
    check_sinks,
    vllm_attention_forward,
)
from vllm.model_executor.models.transformers.base import Base
from vllm.model_executor.models.transformers.causal import CausalMixin
from vllm.model_executor.models.transformers.fusers.attention import VLLM_ATTN_IMPL
from vllm.model_executor.models.transformers.fusers.moe import vllm_experts_forward
from vllm.model_executor.models.transformers.moe import MoEMixin


class TransformersForCausalLM(CausalMixin, Base):
    """A decoder of Transformers with its own output head."""


class TransformersMoEForCausalLM(MoEMixin, CausalMixin, Base):
    """The same with routed experts."""


ALL_EXPERTS_FUNCTIONS[VLLM_ATTN_IMPL] = vllm_experts_forward
ALL_ATTENTION_FUNCTIONS[VLLM_ATTN_IMPL] = vllm_attention_forward

__all__ = [
    "VLLM_ATTN_ATTR",
    "TransformersForCausalLM",
    "TransformersMoEForCausalLM",
    "check_sinks",
    "vllm_attention_forward",
]
