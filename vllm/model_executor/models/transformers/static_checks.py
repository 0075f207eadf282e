# SPDX-License-Identifier: Apache-2.0
"""What a configuration alone shows to be beyond the Transformers backend."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from transformers import PretrainedConfig

from vllm.config import ModelConfig
from vllm.exceptions import ConfigError
from vllm.model_executor.model_loader.mxfp4 import refuse_other_quantization

# Layers that carry a state from token to token, or see a pattern that no window describes.
_STATEFUL_LAYERS = frozenset(
    {
        "conv",
        "hybrid",
        "linear_attention",
        "mamba",
        "mamba2",
        "recurrent",
        "short_conv",
        "state_space",
    }
)
_UNKNOWN_PATTERNS = frozenset({"chunked_attention", "compressed_sparse_attention"})


def refuse_by_configuration(model_config: ModelConfig) -> None:
    """Refuse what no later step could apply.

    Raises:
        ConfigError: weights of unknown packing, an encoder, layers that keep a state, or a rotary
            embedding that depends on the longest sequence of a batch.
    """
    config = model_config.hf_text_config
    refuse_other_quantization(model_config.hf_config)
    if config is not model_config.hf_config:
        raise ConfigError(
            f"{type(model_config.hf_config).__name__} describes a model of several kinds of input; "
            "only models of text alone are served"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"{type(config).__name__} is an encoder-decoder; only decoders are served"
        )
    for kind in {*(getattr(config, "layer_types", None) or ())}:
        if kind in _STATEFUL_LAYERS:
            raise ConfigError(
                f"layer_types names {kind!r}: layers that keep a state between tokens are not "
                "supported"
            )
        if kind in _UNKNOWN_PATTERNS:
            raise ConfigError(
                f"layer_types names {kind!r}: this attention pattern is not supported"
            )
    _refuse_growing_rope(config, model_config.max_model_len)


def refuse_by_modules(model: nn.Module) -> None:
    """Refuse modules that mix neighbouring tokens.

    Raises:
        ConfigError: there is one, by its name.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1:
            raise ConfigError(
                f"{name} convolves over {module.kernel_size[0]} neighbouring tokens: layers that "
                "keep a state between tokens are not supported"
            )


def _refuse_growing_rope(config: PretrainedConfig, max_model_len: int) -> None:
    """Two kinds of rotary embedding take other frequencies once any sequence is long.

    Tokens of several requests run together, and keys in the cache keep the frequencies they were
    stored with, so such a model is served up to the length where nothing changes yet.
    """
    for parameters in _rope_parameters(config):
        kind = parameters.get("rope_type")
        if kind not in ("dynamic", "longrope"):
            continue
        limit = (
            parameters.get("original_max_position_embeddings")
            or getattr(config, "original_max_position_embeddings", None)
            or config.max_position_embeddings
        )
        if max_model_len > limit:
            raise ConfigError(
                f"rope_type={kind!r} takes other frequencies beyond {limit} tokens, which requests "
                f"that run together cannot share; pass max_model_len={limit} or less"
            )


def _rope_parameters(config: PretrainedConfig) -> Iterator[Mapping[str, Any]]:
    """The rotary parameters: one mapping, or one per kind of layer."""
    found = getattr(config, "rope_parameters", None)
    if not isinstance(found, Mapping):
        return
    if "rope_type" in found:
        yield found
    yield from (v for v in found.values() if isinstance(v, Mapping) and "rope_type" in v)
