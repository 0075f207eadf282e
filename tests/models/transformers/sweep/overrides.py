# SPDX-License-Identifier: Apache-2.0
"""Fields that single model types need beyond the shrinking by names.

Types are listed only where the shrunk default cannot be built or run, or would leave out what
makes the type special.
"""

from typing import Any

_QSA = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}

_LATENT_WINDOW = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 24,
    "swa_kv_lora_rank": 32,
    "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 16,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

_MIXED = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
_WINDOW_AND_FULL = ["sliding_attention", "full_attention"] * 2

OVERRIDES: dict[str, dict[str, Any]] = {
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {
        "layer_types": _WINDOW_AND_FULL,
        "num_hidden_layers": 4,
        "rope_parameters": {
            "sliding_attention": _ROPE | {"mrope_section": [4, 2, 2]},
            "full_attention": _ROPE | {"rope_theta": 1000.0, "mrope_section": [4, 2, 2]},
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {"text_config": _LATENT_WINDOW},
    "dots3_note_text": _LATENT_WINDOW,
    "gemma3n_text": {
        "layer_types": _WINDOW_AND_FULL,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": 96,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    },
    "gemma4_assistant": {
        "text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "kolibri1_1": {
        "index_num_heads": 2,
        "index_pool_size": 16,
        "index_topk": 8,
        "index_compression": 4,
        "index_num_local_tokens": 8,
        "index_num_sink_tokens": 2,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "qwen4_exp": {"text_config": _QSA},
    "qwen4_exp_text": _QSA,
    "reformer": {
        "attention_head_size": 16,
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh", "local"],
        "num_buckets": 4,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "attention_head_dim": 32,
        "attention_hidden_size": 128,
        "layers_block_type": _MIXED,
        "num_hidden_layers": 4,
    },
    "zamba2": {
        "attention_head_dim": 32,
        "layers_block_type": _MIXED,
        "num_hidden_layers": 4,
    },
}
