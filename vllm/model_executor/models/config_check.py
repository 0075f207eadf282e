# SPDX-License-Identifier: Apache-2.0
"""Refusal of checkpoints whose configuration asks for something a model does not apply.

Two sets of fields are looked at: those that the configuration's class declares, which its own
model reads, and a list of fields that change numbers wherever they appear.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from vllm.exceptions import ConfigError

# Declared by many classes, without effect on inference.
_HARMLESS = frozenset(
    {
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "initializer_range",
        "pad_token_id",
        "use_cache",
    }
)

_ABSENT = (None, False, 0, 0.0)
_UNIT = (None, 1, 1.0)

# Fields that change numbers, and the values at which they do not.
_NUMERIC: Mapping[str, tuple[Any, ...]] = {
    "alibi": _ABSENT,
    "attention_bias": _ABSENT,
    "attention_multiplier": (None,),
    "attn_logit_softcapping": _ABSENT,
    "clip_qkv": (None,),
    "compression_config": (None,),
    "embedding_multiplier": _UNIT,
    "final_logit_softcapping": _ABSENT,
    "head_dim": (None,),
    "layer_types": (None,),
    "logit_scale": _UNIT,
    "logits_scaling": _UNIT,
    "mlp_bias": _ABSENT,
    "no_rope_layers": (None,),
    "num_experts": _ABSENT,
    "num_local_experts": _ABSENT,
    "partial_rotary_factor": _UNIT,
    "pretraining_tp": _UNIT,
    "qk_layernorm": _ABSENT,
    "quantization_config": (None,),
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": _UNIT,
    "rope_interleaved": _ABSENT,
    "scale_depth": (None,),
    "scale_emb": _UNIT,
    "sliding_window": (None,),
    "use_bidirectional_attention": _ABSENT,
    "use_mrope": _ABSENT,
    "use_qk_norm": _ABSENT,
}


def refuse_unknown_fields(config: PretrainedConfig, applied: frozenset[str], model: str) -> None:
    """Check every field that may change numbers.

    Args:
        config: the checkpoint's configuration.
        applied: fields that the model reads and applies.
        model: name of the model's class, for the message.

    Raises:
        ConfigError: a field is set that the model does not apply, which the message names, or
            the configuration's class does not declare its fields.
    """
    config_class: type = type(config)
    if not dataclasses.is_dataclass(config_class):
        raise ConfigError(
            f"the configuration class {config_class.__name__} does not declare its fields, so "
            f"what {model} would leave out cannot be known; use a checkpoint whose configuration "
            "is one of Transformers' own"
        )
    base = {field.name for field in dataclasses.fields(PretrainedConfig)}
    declared = {field.name for field in dataclasses.fields(config_class)}
    known = applied | base | _HARMLESS
    for name in sorted((declared | _NUMERIC.keys()) - known):
        value = getattr(config, name, None)
        neutral = _NUMERIC.get(name, _ABSENT)
        if any(value is v or (type(value) is type(v) and value == v) for v in neutral):
            continue
        raise ConfigError(_message(name, value, model))


def _message(name: str, value: Any, model: str) -> str:
    if name in ("quantization_config", "compression_config"):
        method = value.get("quant_method") if isinstance(value, Mapping) else None
        return (
            f"{name}: quantization method {method!r} is not supported; use a checkpoint with "
            "fp32, fp16 or bf16 weights, or a GGUF file"
        )
    return (
        f"{name}={value!r} in the model's configuration is not applied by {model}, and leaving it "
        "out would change the model's answers"
    )
