# SPDX-License-Identifier: Apache-2.0
"""Every kind of rotary embedding against Transformers' frequencies, and refusals by name."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vllm.exceptions import ConfigError
from vllm.model_executor.layers.rotary_embedding import get_rope

HEAD = 32

KINDS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.7,
        "mscale_all_dim": 0.3,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "short_factor": [1.0 + 0.1 * i for i in range(HEAD // 2)],
        "long_factor": [2.0 + 0.2 * i for i in range(HEAD // 2)],
    },
}


def config_with(parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * HEAD,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 5000.0, **parameters},
    )


def table(rope: Any) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = rope.cos_sin_cache.chunk(2, dim=-1)
    return cos, sin


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_table_equals_the_reference_frequencies(kind: str) -> None:
    config = config_with(KINDS[kind])
    inv_freq, scale = ROPE_INIT_FUNCTIONS[KINDS[kind]["rope_type"]](config, "cpu")
    cos, sin = table(
        get_rope(HEAD, 200, rope_parameters=config.rope_parameters, max_position_embeddings=256)
    )
    angles = torch.outer(torch.arange(200).float(), inv_freq)
    torch.testing.assert_close(cos, angles.cos() * scale, atol=2e-5, rtol=0)
    torch.testing.assert_close(sin, angles.sin() * scale, atol=2e-5, rtol=0)


def test_partial_rotation_turns_the_leading_entries_only() -> None:
    parameters = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    rope = get_rope(HEAD, 16, rope_parameters=parameters)
    query, key = torch.randn(3, 2 * HEAD), torch.randn(3, HEAD)
    before = query.clone()
    rope(torch.tensor([1, 5, 9]), query, key)
    assert rope.rotary_dim == HEAD // 2
    heads, heads_before = query.view(3, 2, HEAD), before.view(3, 2, HEAD)
    assert torch.equal(heads[..., HEAD // 2 :], heads_before[..., HEAD // 2 :])
    assert not torch.isclose(heads[..., 0], heads_before[..., 0]).any()


@pytest.mark.parametrize("is_neox", [True, False])
def test_scores_depend_on_distance_alone_and_norms_are_kept(is_neox: bool) -> None:
    rope = get_rope(
        HEAD,
        64,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        is_neox_style=is_neox,
    )
    q0, k0 = torch.randn(HEAD), torch.randn(HEAD)

    def score(q_position: int, k_position: int) -> torch.Tensor:
        q, k = q0.clone().view(1, -1), k0.clone().view(1, -1)
        rope(torch.tensor([q_position]), q, q0.clone().view(1, -1))
        rope(torch.tensor([k_position]), k0.clone().view(1, -1), k)
        torch.testing.assert_close(q.norm(), q0.norm())
        return (q * k).sum()

    torch.testing.assert_close(score(10, 3), score(57, 50), atol=1e-4, rtol=1e-4)
    assert not torch.isclose(score(10, 3), score(10, 4))


def test_strided_rows_are_turned_in_place() -> None:
    rope = get_rope(HEAD, 16, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    fused = torch.randn(4, 4 * HEAD)
    positions = torch.tensor([0, 1, 7, 15])
    q, k, v = fused.split([2 * HEAD, HEAD, HEAD], dim=-1)
    want_q, want_k = rope(positions, q.contiguous(), k.contiguous())
    value = v.clone()
    rope(positions, q, k)
    assert torch.equal(fused[:, : 2 * HEAD], want_q)
    assert torch.equal(fused[:, 2 * HEAD : 3 * HEAD], want_k)
    assert torch.equal(v, value)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_kinds_that_change_with_length_are_refused_where_they_would(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"{kind}.*max_model_len=257: pass at most 256"):
        get_rope(
            HEAD,
            257,
            rope_parameters={"rope_theta": 100.0, **KINDS[kind]},
            max_position_embeddings=256,
        )


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"rope_type": "spiral", "rope_theta": 1e4}, "rope_type='spiral'"),
        ({"type": "su", "rope_theta": 1e4}, "rope_type='su'"),
        ({"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1]}, "'mrope_section'"),
        ({"rope_type": "linear", "rope_theta": 1e4}, "factor=None"),
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 0}, "factor=0"),
        ({"rope_type": "default"}, "rope_theta=None"),
        ({"full_attention": {"rope_type": "default"}}, "'full_attention'"),
        ({"rope_theta": 1e4, "partial_rotary_factor": 0.1}, "rotary_dim=3"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(parameters: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        get_rope(HEAD, 16, rope_parameters=parameters)
