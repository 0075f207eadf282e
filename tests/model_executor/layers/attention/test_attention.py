# SPDX-License-Identifier: Apache-2.0
"""The attention layer: what it registers, what it refuses, what it passes on."""

import pytest
import torch
from torch import nn

from tests.v1.worker.tiny import make_vllm_config
from vllm.config import set_current_vllm_config
from vllm.exceptions import ConfigError
from vllm.forward_context import get_forward_context, set_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionType
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec


def build(config=None, **options):
    with set_current_vllm_config(config or make_vllm_config()):
        return Attention(4, 6, 0.5, num_kv_heads=2, **{"prefix": "a", **options})


def test_it_registers_under_its_name_once():
    config = make_vllm_config()
    layer = build(config)
    assert config.static_forward_context == {"a": layer}
    with pytest.raises(ValueError, match="'a'"):
        build(config)


def test_its_spec_says_what_it_keeps():
    common = {"block_size": 4, "num_kv_heads": 2, "head_size": 6, "dtype": "float32"}
    assert build().get_kv_cache_spec() == FullAttentionSpec(head_size_v=6, **common)
    layer = build(per_layer_sliding_window=9, head_size_v=3)
    assert layer.get_kv_cache_spec() == SlidingWindowSpec(head_size_v=3, sliding_window=9, **common)
    assert "window=9" in repr(layer)


@pytest.mark.parametrize(
    "option",
    [
        {"alibi_slopes": [0.5] * 4},
        {"use_alibi_sqrt": True},
        {"quant_config": object()},
        {"kv_sharing_target_layer_name": "b"},
        {"mm_prefix_clamp_sliding_window": True},
        {"chunk_lookback": 2},
    ],
)
def test_what_it_does_not_apply_is_refused_by_name(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        build(**option)


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ({"per_layer_sliding_window": 0}, "per_layer_sliding_window=0"),
        ({"logits_soft_cap": -1.0}, "logits_soft_cap"),
        ({"num_kv_heads": 3}, "num_kv_heads=3"),
        ({"sinks": torch.zeros(4)}, "Parameter"),
        ({"sinks": nn.Parameter(torch.zeros(2))}, r"\(4,\).*\(2,\)"),
        ({"attn_type": AttentionType.ENCODER}, "encoder"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(option, word):
    with pytest.raises(ConfigError, match=word), set_current_vllm_config(make_vllm_config()):
        Attention(4, 6, 0.5, **{"num_kv_heads": 2, "prefix": "a", **option})


def test_the_kernel_reads_the_very_parameter_the_loader_writes():
    sinks = nn.Parameter(torch.zeros(4))
    layer = build(sinks=sinks)
    assert layer.impl.sinks is sinks and layer.has_sink
    assert list(layer.parameters()) == []  # it stays the model's own


def test_a_profiling_pass_gives_zeros_and_touches_no_cache():
    layer = build(head_size_v=3)
    with set_forward_context(None, num_tokens=5):
        out = layer(torch.ones(5, 24), torch.ones(5, 12), torch.ones(5, 6))
    assert torch.equal(out, torch.zeros(5, 12))


def test_the_context_does_not_nest_and_is_not_invented():
    with pytest.raises(RuntimeError, match="no forward pass"):
        get_forward_context()
    with set_forward_context(None, num_tokens=1):
        with pytest.raises(RuntimeError, match="nests"), set_forward_context(None, num_tokens=1):
            pass
        assert get_forward_context().num_tokens == 1
