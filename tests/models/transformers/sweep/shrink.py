# SPDX-License-Identifier: Apache-2.0
"""Makes the configuration of any model type tiny, by the names of its fields.

Knows names that recur across model types and nothing of single types: what a type needs beyond
that stands in `overrides`. Values are small but telling: windows that the prompts cross, caps and
multipliers that change a logit of order one.
"""

import re
from collections.abc import Mapping
from typing import Any

VOCAB_SIZE = 128
MAX_POSITIONS = 256
HIDDEN_SIZE = 64
NUM_HEADS = 4
WINDOW = 8
MAX_LAYERS = 6
_MIN_LAYERS = 3

# The first pattern that matches a whole field name decides; whole numbers only ever get smaller.
_INTEGERS: tuple[tuple[str, int], ...] = (
    (r".*vocab_size(_per_layer_input)?|ngram_vocab_size_base", VOCAB_SIZE),
    (r"(moe|expert|shared_experts?|moe_shared_expert)_(intermediate|ffn_hidden)_size", 48),
    (r"(shared|moe_latent|dense|prefix_dense)_intermediate_size|moe_latent_size", 48),
    (r"intermediate_size(_mlp)?|n_inner|d_inner|ffn_(dim|hidden_size)|d_?ff|dim_ff|mlp_dim", 96),
    (r"(en|de)coder_ffn_dim|feed_forward_size", 96),
    (r"(\w+_)?hidden_size(_global)?|n_embd|d_model|emb_dim|embedding_dim|lru_width", HIDDEN_SIZE),
    (r"(\w+_)?embedding_size|word_embed_proj_dim|\w+_embed_dim|attention_hidden_size", HIDDEN_SIZE),
    (
        r"adapter_(in|out)_dim|adapter_input_size|out_hidden_size|projector_\w+_dim|vision_output_dim",
        HIDDEN_SIZE,
    ),
    (r"hidden_size_per_layer_input|dim_model_base", 16),
    (r"zero_expert_num", 2),
    (r"(kv_n_heads|num_kv_heads|(\w+_)?num_key_value_heads)", 2),
    (r"linear_num_key_heads", 2),
    (r"(\w+_)?num_attention_heads|n_heads?|num_heads|(\w+_)?attention_heads", NUM_HEADS),
    (r"linear_num_(value_)?heads|index(er)?_n_heads|num_(en|de)coder_attention_heads", NUM_HEADS),
    (r"(swa_|linear_|index_|indexer_|linear_key_|linear_value_)?head_dim|dim_head", 16),
    (r"d_head|d_kv|kv_channels|attention_head_(dim|size)|global_head_dim", 16),
    (r"(swa_)?kv_lora_rank", 32),
    (r"(swa_)?q_lora_rank", 24),
    (r"(swa_)?o_lora_rank|(swa_)?qk_nope_head_dim|(swa_)?v_head_dim|index_topk|\w+_rank", 16),
    (r"(swa_)?qk_rope_head_dim|rotary_dim|o_groups|d_rel", 8),
    (r"(n_routed|(moe_)?num(_local)?)_experts", 4),
    (r"num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts|n_group|num_expert_group", 2),
    (r"topk_group|num_dense_layers|first_k_dense_replace", 1),
    (r"sliding_window(_size)?|window_size|attention_window_size|local_attention", WINDOW),
    (r"attention_chunk_size|local_attention_window_len|keep_window_size", WINDOW),
    (r"index_block_size|index_topk_blocks|block_size", 4),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|context_length", MAX_POSITIONS),
    (r"max_(source|target)_positions|model_max_length|rel_extent", MAX_POSITIONS),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads", 8),
    (r"mamba_d_(head|state)|mamba_head_dim|ssm_state_size|state_size|mamba_headdim", 16),
    (r"mamba_d_ssm", 128),
    (r"mamba_dt_rank|time_step_rank|n_groups", 4),
    (r"(mamba_)?chunk_size", 8),
)
_LAYER_COUNTS = re.compile(
    r"num_hidden_layers|n_layers?|num_layers|((en|de)coder_layers)|num_blocks|depth"
    r"|num_(en|de)coder_layers"
)
# Factors whose default is 1 or too mild to show; None keeps what the type says.
_FLOATS: Mapping[str, float] = {
    "attention_multiplier": 0.2,
    "attn_logit_softcapping": 3.0,
    "embedding_multiplier": 1.7,
    "final_logit_softcapping": 4.0,
    "logit_scale": 0.6,
    "logits_scaling": 1.6,
    "logits_soft_cap": 4.0,
    "lm_head_multiplier": 0.7,
    "residual_multiplier": 0.6,
}
# What to set where the default is None: else the part would stay unused or could not be built.
_ABSENT: Mapping[str, Any] = {"sliding_window": WINDOW, "num_key_value_heads": 2, "head_dim": 16}
_TOKEN_IDS = re.compile(r"\w+_token_(id|index)|\w+_(index|id)")
_SKIPPED = {"id2label", "label2id", "transformers_version", "problem_type"}


def shrink(config_cls: type, overrides: Mapping[str, Any]) -> Any:
    """A tiny configuration of class `config_cls`.

    Args:
        config_cls: a configuration class of Transformers.
        overrides: fields that this type needs otherwise; a mapping goes to the sub-configuration
            of that name, None as a value leaves the field at its default.
    """
    default = _default(config_cls, overrides)
    fields = _shrunk_fields(default, overrides)
    # Anything else is derived from these by the class itself.
    aliases: dict[str, str] = config_cls.attribute_map  # type: ignore[attr-defined]
    taken = {*config_cls.__dataclass_fields__, *aliases, *aliases.values()}  # type: ignore[attr-defined]
    return config_cls(**{k: v for k, v in fields.items() if k in taken or k in overrides})


def _default(config_cls: type, overrides: Mapping[str, Any]) -> Any:
    from huggingface_hub.errors import StrictDataclassError

    try:
        return config_cls()
    except StrictDataclassError:  # A few classes refuse their own defaults.
        return config_cls(**overrides)


def _shrunk_fields(default: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
    from transformers import PretrainedConfig

    values = {k: v for k, v in vars(default).items() if not k.startswith("_") and k not in _SKIPPED}
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, PretrainedConfig):
            own = overrides.get(name)
            fields[name] = shrink(type(value), own if isinstance(own, Mapping) else {})
        else:
            small = _shrunk_value(name, value)
            if small is not _SAME:
                fields[name] = small
    fields |= _shrunk_layers(values)
    fields |= _latent_heads(values)
    for name, value in overrides.items():
        if isinstance(values.get(name), PretrainedConfig) and isinstance(value, Mapping):
            continue
        fields[name] = value
    return fields


_SAME = object()


def _shrunk_value(name: str, value: Any) -> Any:
    """The small value of a field, or `_SAME`."""
    if isinstance(value, bool):
        return True if name in ("use_sliding_window", "is_decoder") else _SAME
    if name in _FLOATS and (isinstance(value, float) or value == 1):
        return _FLOATS[name]
    if name == "query_pre_attn_scalar":
        return 20
    if value is None and name in _ABSENT:
        return _ABSENT[name]
    if name == "rope_parameters" and isinstance(value, dict):
        return _shrunk_rope(value)
    if _TOKEN_IDS.fullmatch(name):
        return 2 if _is_beyond(value) else _SAME
    if not isinstance(value, int):
        return _SAME
    for pattern, small in _INTEGERS:
        if re.fullmatch(pattern, name):
            return small if value > small else _SAME
    return _SAME


def _is_beyond(value: Any) -> bool:
    ids = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(i, int) and i >= VOCAB_SIZE for i in ids)


def _shrunk_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """The same kind of rotation, its scaling beginning inside the prompts."""
    small: dict[str, Any] = {}
    for name, value in rope.items():
        if isinstance(value, dict):
            small[name] = _shrunk_rope(value)
        elif name == "original_max_position_embeddings":
            small[name] = 32
        else:
            small[name] = value
    return small


def _latent_heads(values: Mapping[str, Any]) -> dict[str, int]:
    """In the latent form of attention, head sizes and counts depend on each other."""
    if values.get("kv_lora_rank") is None:
        return {}
    small = {}
    if values.get("num_key_value_heads") == values.get("num_attention_heads"):
        small["num_key_value_heads"] = NUM_HEADS
    if values.get("head_dim") == values.get("qk_rope_head_dim"):
        small["head_dim"] = 8
    return small


def _shrunk_layers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Few layers, so chosen that every combination of per-layer values still occurs."""
    counts = {
        name: value
        for name, value in values.items()
        if _LAYER_COUNTS.fullmatch(name) and isinstance(value, int) and value > 1
    }
    if not counts:
        return {}
    total = max(counts.values())
    lists = {
        name: list(value)
        for name, value in values.items()
        if isinstance(value, list | tuple) and len(value) == total and name not in ("size",)
    }
    chosen = _representatives([tuple(map(str, row)) for row in zip(*lists.values(), strict=True)])
    chosen = chosen or list(range(min(_MIN_LAYERS, total)))
    small: dict[str, Any] = {name: min(len(chosen), value) for name, value in counts.items()}
    for name, value in lists.items():
        small[name] = [value[i] for i in chosen]
    return small


def _representatives(rows: list[tuple[str, ...]]) -> list[int]:
    """Indices of the first row of each kind, in order, filled up with the first rows."""
    if not rows:
        return []
    chosen = sorted({rows.index(row) for row in rows})[:MAX_LAYERS]
    for index in range(len(rows)):
        if len(chosen) >= _MIN_LAYERS:
            break
        if index not in chosen:
            chosen.append(index)
    return sorted(chosen)
