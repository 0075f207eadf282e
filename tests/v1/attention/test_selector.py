# SPDX-License-Identifier: Apache-2.0
"""The choice of a backend: limits are checked on every platform, and refusals say everything."""

import logging

import pytest
import torch

from vllm.exceptions import ConfigError
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention import registry
from vllm.v1.attention.backend import AttentionBackend, AttentionSelectorConfig, AttentionType
from vllm.v1.attention.backends.torch_ref import (
    TorchRefBackend,
    TorchRefImpl,
    TorchRefMetadataBuilder,
)
from vllm.v1.attention.selector import get_attn_backend

FULL_HOUSE = AttentionSelectorConfig(
    head_size=24,
    head_size_v=7,
    dtype=torch.float32,
    block_size=13,
    has_sink=True,
    has_sliding_window=True,
    has_logits_soft_cap=True,
    use_non_causal=True,
)
PLAIN = AttentionSelectorConfig(head_size=64, head_size_v=64, dtype=torch.bfloat16, block_size=16)


class NarrowBackend(AttentionBackend):
    """Declares nothing beyond the base class but where it runs and what sizes it takes."""

    @staticmethod
    def get_name():
        return "NARROW"

    @staticmethod
    def get_impl_cls():
        return TorchRefImpl

    @staticmethod
    def get_builder_cls():
        return TorchRefMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, *, head_size, head_size_v):
        return (num_blocks, block_size, num_kv_heads, head_size + head_size_v)

    @classmethod
    def get_supported_head_sizes(cls):
        return [64, 128]

    @classmethod
    def get_supported_kernel_block_sizes(cls):
        return [16]

    @classmethod
    def supports_device(cls, device_type):
        return device_type == "cpu"


class NarrowFirst(CpuPlatform):
    def get_attn_backend_priority(self):
        return ["NARROW", "TORCH_REF"]


class NarrowOnly(CpuPlatform):
    def get_attn_backend_priority(self):
        return ["NARROW"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    backends = {**registry.BACKENDS, "NARROW": f"{__name__}:NarrowBackend"}
    monkeypatch.setattr(registry, "BACKENDS", backends)
    monkeypatch.setattr("vllm.v1.attention.selector.BACKENDS", backends)


def test_the_definition_takes_everything_a_decoder_asks():
    assert TorchRefBackend.validate_configuration(FULL_HOUSE, device_type="cpu") == []
    assert get_attn_backend(FULL_HOUSE) is TorchRefBackend


def test_each_limit_gives_its_own_reason():
    reasons = NarrowBackend.validate_configuration(FULL_HOUSE, device_type="cuda")
    words = ("device cuda", "head_size 24 (", "head_size_v 7", "float32", "block_size 13", "sinks")
    words += ("windows", "soft cap", "non-causal")
    assert len(reasons) == len(words)
    for word in words:
        assert sum(word in reason for reason in reasons) == 1, word


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [("attn_type", AttentionType.ENCODER_ONLY, "encoder_only"), ("kv_cache_dtype", "fp8", "fp8")],
)
def test_what_no_backend_can_do_is_refused_with_the_reason(field, value, word):
    asked = {name: getattr(PLAIN, name) for name in PLAIN.__slots__} | {field: value}
    with pytest.raises(ConfigError, match=word):
        get_attn_backend(AttentionSelectorConfig(**asked))


def test_the_first_of_the_order_that_passes_is_taken_and_the_refused_are_logged(caplog):
    logging.getLogger("vllm").addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger="vllm"):
            assert get_attn_backend(PLAIN, platform=NarrowFirst()).get_name() == "NARROW"
            assert get_attn_backend(FULL_HOUSE, platform=NarrowFirst()) is TorchRefBackend
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    assert "TORCH_REF; passed over NARROW (" in caplog.text
    assert "no support for attention sinks" in caplog.text


def test_a_named_backend_that_lacks_something_is_refused_and_others_are_named():
    with pytest.raises(ConfigError, match=r"'NARROW'.*attention sinks.*TORCH_REF"):
        get_attn_backend(FULL_HOUSE, backend="narrow")
    with pytest.raises(ConfigError, match="'NARROW'"):
        get_attn_backend(FULL_HOUSE, backend=NarrowBackend)
    assert get_attn_backend(PLAIN, backend="narrow").get_name() == "NARROW"


def test_when_none_can_every_reason_is_given():
    with pytest.raises(ConfigError, match=r"NARROW \(.*head_size 24.*sinks.*windows"):
        get_attn_backend(FULL_HOUSE, platform=NarrowOnly())


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ConfigError, match=r"'FLASH'.*NARROW, TORCH_REF"):
        get_attn_backend(PLAIN, backend="FLASH")
