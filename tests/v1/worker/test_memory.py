# SPDX-License-Identifier: Apache-2.0
"""How large the KV cache is made."""

import logging

import pytest
import torch
from torch import nn

from tests.v1.worker.tiny import TinyModel, make_vllm_config
from vllm.config import CacheConfig
from vllm.exceptions import ConfigError
from vllm.platforms.interface import DeviceMemory
from vllm.utils.mem_utils import GIB, MIB
from vllm.v1.worker.memory import (
    MemoryNeeds,
    available_cache_bytes,
    estimate_activations,
    weights_bytes,
)

LAPTOP = DeviceMemory(total=16 * GIB, available=10 * GIB, used=2 * GIB, bound_by="host memory")
SMALL = DeviceMemory(2 * GIB, GIB, GIB // 2, "control group memory limit")
NEEDS = MemoryNeeds(weights=GIB, activations=GIB // 4)


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)


def size(device=LAPTOP, needs=NEEDS, *, on_cpu=True, **options):
    return available_cache_bytes(CacheConfig(**options), device, needs, on_cpu=on_cpu)


def test_the_share_is_of_what_the_process_may_use_less_what_it_holds():
    # Half of the 12 GiB this process may use, less 2 held and a quarter for a step.
    assert size() == 6 * GIB - 2 * GIB - GIB // 4
    assert size(gpu_memory_utilization=0.75) == 9 * GIB - 2 * GIB - GIB // 4


def test_weights_that_are_mapped_but_not_read_yet_count():
    assert size(needs=MemoryNeeds(3 * GIB, 0)) == 6 * GIB - 3 * GIB


def test_exact_sizes_are_exact_and_the_variable_wins(monkeypatch):
    assert size(kv_cache_memory_bytes=123456789) == 123456789
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.25")
    assert size(kv_cache_memory_bytes=123456789) == GIB // 4
    assert size(on_cpu=False, kv_cache_memory_bytes=123456789) == 123456789
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0")
    assert size(kv_cache_memory_bytes=123456789) == 123456789


def test_what_cannot_be_had_is_refused_with_the_numbers(monkeypatch):
    with pytest.raises(ConfigError, match=r"3\.00 GiB.*control group.*1\.00 GiB"):
        size(SMALL, kv_cache_memory_bytes=3 * GIB)
    with pytest.raises(ConfigError, match=r"0\.5 of 1\.50 GiB.*1\.00 GiB held"):
        size(SMALL)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "-1")
    with pytest.raises(ConfigError, match="VLLM_CPU_KVCACHE_SPACE=-1"):
        size()


def test_the_numbers_are_logged(caplog):
    logging.getLogger("vllm").addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger="vllm"):
            size()
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    assert "3.75 GiB" in caplog.text and "12.00 GiB" in caplog.text


def test_tied_weights_count_once():
    model = nn.Module()
    model.a = nn.Parameter(torch.zeros(100, 10))
    model.b = nn.Parameter(model.a.data)
    model.c = nn.Parameter(model.a.data[:50])
    assert weights_bytes(model) == 4000


def test_the_step_estimate_grows_with_vocabulary_and_context():
    short = make_vllm_config(max_model_len=128)
    model = TinyModel(short, [None, 5])
    specs = {layer.layer_name: layer.get_kv_cache_spec() for layer in model.attn}
    base = estimate_activations(model, short, specs)
    longer = estimate_activations(model, make_vllm_config(max_model_len=100_128), specs)
    # 24 cached numbers a token, once as they are and once in fp32.
    assert longer - base == 100_000 * 24 * 8
    assert 64 * MIB < base < 66 * MIB
