# SPDX-License-Identifier: Apache-2.0
"""From arguments to the resolved configuration."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import TinyModel
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import ConfigError
from vllm.v1.engine.serialization import decode_config, encode_config


def resolve(model: Path, **arguments: object) -> VllmConfig:
    return EngineArgs(str(model), **arguments).create_engine_config()


def test_defaults(tiny_model: TinyModel) -> None:
    path = tiny_model()
    config = resolve(path)
    model = config.model_config
    assert (model.architecture, model.vocab_size) == ("LlamaForCausalLM", 512)
    assert (model.max_model_len, model.auto_max_model_len) == (2048, False)
    assert model.served_model_name == (str(path),)
    assert model.eos_token_ids == (1,)
    assert config.scheduler_config.max_num_batched_tokens == 2048
    assert config.cache_config.enable_prefix_caching


@pytest.mark.parametrize(
    ("stored", "asked", "resolved"),
    [
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.float16, "auto", torch.float16),
        (torch.float32, "auto", torch.bfloat16),
        (torch.bfloat16, "float32", torch.float32),
        (torch.bfloat16, "float", torch.float32),
        (torch.bfloat16, torch.float16, torch.float16),
    ],
)
def test_dtype(tiny_model: TinyModel, stored, asked, resolved) -> None:
    assert resolve(tiny_model(dtype=stored), dtype=asked).model_config.dtype is resolved


def test_an_unknown_dtype_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(ConfigError, match="dtype='int8'"):
        resolve(tiny_model(), dtype="int8")


@pytest.mark.parametrize(
    ("asked", "length", "is_auto"),
    [(64, 64, False), ("1k", 1000, False), (-1, 2048, True), ("auto", 2048, True)],
)
def test_max_model_len(tiny_model: TinyModel, asked, length: int, is_auto: bool) -> None:
    model = resolve(tiny_model(), max_model_len=asked).model_config
    assert (model.max_model_len, model.auto_max_model_len) == (length, is_auto)


def test_a_length_beyond_the_model_is_refused_with_the_limit(tiny_model: TinyModel) -> None:
    with pytest.raises(ConfigError, match="at most 2048"):
        resolve(tiny_model(), max_model_len=2049)


def test_yarn_extends_the_length(tiny_model: TinyModel) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 2048,
    }
    config = resolve(tiny_model(), hf_overrides={"rope_parameters": rope})
    assert config.model_config.max_model_len == 8192


def test_generation_config(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "model"
    shutil.copytree(tiny_model(), path)
    given = {"top_k": 1, "repetition_penalty": 1.5, "eos_token_id": [1, 5], "max_new_tokens": 9}
    (path / "generation_config.json").write_text(json.dumps(given))
    model = resolve(path).model_config
    assert model.generation_defaults == {"top_k": 1, "repetition_penalty": 1.5, "max_tokens": 9}
    assert model.eos_token_ids == (1, 5)
    plain = resolve(path, generation_config="vllm").model_config
    assert (plain.generation_defaults, plain.eos_token_ids) == ({}, (1, 5))
    other = resolve(path, override_generation_config={"top_k": 7}).model_config
    assert other.generation_defaults["top_k"] == 7
    assert resolve(tiny_model(), generation_config=str(path)).model_config.generation_defaults
    with pytest.raises(ConfigError, match="temprature"):
        resolve(path, override_generation_config={"temprature": 1})
    with pytest.raises(ConfigError, match=r"holds no generation_config\.json"):
        resolve(path, generation_config=str(tmp_path))


def test_a_chat_template_may_be_a_file(tiny_model: TinyModel, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages }}")
    assert resolve(tiny_model(), chat_template=str(file)).model_config.chat_template == (
        "{{ messages }}"
    )
    with pytest.raises(ConfigError, match="chat_template"):
        resolve(tiny_model(), chat_template=str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel_size", 3),
        ("gpu_memory_utilization", 1.5),
        ("max_num_seqs", 0),
        ("served_model_name", ""),
        ("structured_outputs_config", {"nope": 1}),
        ("structured_outputs_config", {"backend": "xgrammar"}),
        ("structured_outputs_config", {"compile_timeout_s": -1}),
        ("structured_outputs_config", {"compile_timeout_s": "1"}),
        ("structured_outputs_config", {"max_spec_bytes": 0}),
        ("structured_outputs_config", {"max_choices": True}),
        ("structured_outputs_config", {"cache_size": 1.5}),
        ("model_impl", "triton"),
        ("max_waiting_requests", -1),
        ("max_waiting_tokens", -1),
        ("long_prefill_token_threshold", -1),
        ("watermark", 1.0),
        ("log_interval_s", 0.0),
        ("distributed_executor_backend", "threads"),
        ("max_num_batched_tokens", "many"),
    ],
)
def test_wrong_values_are_refused_by_name(tiny_model: TinyModel, name: str, value) -> None:
    with pytest.raises(ConfigError, match=name):
        resolve(tiny_model(), **{name: value})


def test_limits_reach_their_owners(tiny_model: TinyModel) -> None:
    config = resolve(
        tiny_model(),
        long_prefill_token_threshold=7,
        watermark=0.25,
        log_interval_s=3,
        max_waiting_requests=0,
        model_impl="vllm",
    )
    assert config.scheduler_config.long_prefill_token_threshold == 7
    assert config.scheduler_config.max_waiting_requests == 0
    assert config.cache_config.watermark == 0.25
    assert config.observability_config.log_interval_s == 3


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen3"])
def test_a_configuration_survives_the_way_to_another_process(
    tiny_model: TinyModel, arch: str
) -> None:
    config = resolve(tiny_model(arch), dtype="float32", max_model_len=100, served_model_name="x")
    data = encode_config(config)
    assert b"\n" not in data
    copy = decode_config(data)
    own, other = config.model_config, copy.model_config
    assert other.hf_config.to_dict() == own.hf_config.to_dict()
    for name in own.__dataclass_fields__:
        if name != "hf_config":
            assert getattr(other, name) == getattr(own, name), name
    assert copy.cache_config == config.cache_config
    assert copy.scheduler_config == config.scheduler_config
    assert copy.structured_outputs_config == config.structured_outputs_config
