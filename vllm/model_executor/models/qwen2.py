# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen2.5. Reference: Transformers' modeling_qwen2."""

from transformers import PretrainedConfig

from vllm.exceptions import ConfigError
from vllm.model_executor.models.decoder import DecoderLM, DecoderSpec
from vllm.model_executor.models.llama import LLAMA_FIELDS, llama_spec

# The first two decide `layer_types` and `sliding_window` inside the configuration class.
WINDOW_FIELDS = frozenset(
    {"max_window_layers", "use_sliding_window", "layer_types", "sliding_window"}
)


def windows_of_layers(config: PretrainedConfig) -> tuple[int | None, ...]:
    """The window of each layer, from `layer_types` and `sliding_window`.

    Raises:
        ConfigError: a layer is of another type, or is windowed and there is no window.
    """
    windows = {"full_attention": None, "sliding_attention": config.sliding_window}
    for layer_type in config.layer_types:
        if layer_type not in windows:
            raise ConfigError(
                f"layer_types holds {layer_type!r}; this model has 'full_attention' and "
                "'sliding_attention'"
            )
        if layer_type == "sliding_attention" and config.sliding_window is None:
            raise ConfigError(
                "layer_types holds 'sliding_attention' but sliding_window is not set (or "
                "use_sliding_window is false)"
            )
    return tuple(windows[layer_type] for layer_type in config.layer_types)


class Qwen2ForCausalLM(DecoderLM):
    """Llama with a bias on q, k and v, and a window in some layers."""

    applied_fields = LLAMA_FIELDS - {"attention_bias", "mlp_bias"} | WINDOW_FIELDS

    @classmethod
    def decoder_spec(cls, config: PretrainedConfig) -> DecoderSpec:
        return llama_spec(config, qkv_bias=True, o_bias=False, windows=windows_of_layers(config))
