# SPDX-License-Identifier: Apache-2.0
"""Mistral: Llama with one window for all layers. Reference: Transformers' modeling_mistral."""

from transformers import PretrainedConfig

from vllm.model_executor.models.decoder import DecoderLM, DecoderSpec
from vllm.model_executor.models.llama import LLAMA_FIELDS, llama_spec


class MistralForCausalLM(DecoderLM):
    """Llama without biases; a query sees `sliding_window` tokens, or all if that is None."""

    applied_fields = LLAMA_FIELDS - {"attention_bias", "mlp_bias"} | {"sliding_window"}

    @classmethod
    def decoder_spec(cls, config: PretrainedConfig) -> DecoderSpec:
        windows = (config.sliding_window,) * config.num_hidden_layers
        return llama_spec(config, qkv_bias=False, o_bias=False, windows=windows)
