# SPDX-License-Identifier: Apache-2.0
"""Bytes on the wire between front end and core: msgpack with types, never pickle.

A configuration crosses once, as JSON, at the start of the core's process: the process runs what
its parent resolved and resolves nothing itself.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from vllm.config import (
    CacheConfig,
    LoadConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
    VllmConfig,
)
from vllm.exceptions import ConfigError
from vllm.v1.engine.messages import EngineCoreOutputs, EngineCoreRequest


class UtilityCall(msgspec.Struct, array_like=True, gc=False):
    """A call of one of the core's utilities by name."""

    call_id: int
    method: str
    args: list[Any]


class CoreReady(msgspec.Struct, array_like=True, gc=False):
    """The core has started, or could not.

    Attributes:
        max_model_len: the length the engine settled on.
        error_type: class name of the failure; None when the core is ready.
        error_message: what failed, in words fit for a user.
    """

    max_model_len: int = 0
    error_type: str | None = None
    error_message: str = ""


encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(EngineCoreRequest).decode
decode_outputs = msgspec.msgpack.Decoder(EngineCoreOutputs).decode
decode_abort = msgspec.msgpack.Decoder(list[str]).decode
decode_utility = msgspec.msgpack.Decoder(UtilityCall).decode
decode_ready = msgspec.msgpack.Decoder(CoreReady).decode

_PARTS: dict[str, type[Any]] = {
    "cache_config": CacheConfig,
    "scheduler_config": SchedulerConfig,
    "load_config": LoadConfig,
    "parallel_config": ParallelConfig,
    "structured_outputs_config": StructuredOutputsConfig,
    "observability_config": ObservabilityConfig,
}


def encode_config(config: VllmConfig) -> bytes:
    """A resolved configuration as one line of JSON."""
    model = {
        f.name: getattr(config.model_config, f.name)
        for f in dataclasses.fields(ModelConfig)
        if f.name not in ("hf_config", "dtype", "path")
    }
    hf_config = config.model_config.hf_config
    model |= {
        "path": str(config.model_config.path),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "hf_config": {"model_type": hf_config.model_type, "fields": hf_config.to_dict()},
    }
    parts = {name: dataclasses.asdict(getattr(config, name)) for name in _PARTS}
    whole = {"model_config": model, "attention_backend": config.attention_backend, **parts}
    return msgspec.json.encode(whole, enc_hook=str)


def decode_config(data: bytes) -> VllmConfig:
    """The configuration that `encode_config` wrote."""
    whole: dict[str, Any] = msgspec.json.decode(data)
    return VllmConfig(
        model_config=_decode_model(whole["model_config"]),
        attention_backend=whole["attention_backend"],
        **{name: part(**whole[name]) for name, part in _PARTS.items()},
    )


def _decode_model(fields: dict[str, Any]) -> ModelConfig:
    import torch

    dtype = getattr(torch, fields.pop("dtype"))
    hf_config = _decode_hf_config(fields.pop("hf_config"), dtype)
    for name in ("served_model_name", "eos_token_ids"):
        fields[name] = tuple(fields[name])  # JSON has no tuples
    path = Path(fields.pop("path"))
    return ModelConfig(hf_config=hf_config, dtype=dtype, path=path, **fields)


def _decode_hf_config(fields: Mapping[str, Any], dtype: Any) -> Any:
    from transformers import CONFIG_MAPPING

    model_type = fields["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise ConfigError(
            f"model type {model_type!r} is not among those Transformers knows, and code that "
            "comes with a model cannot cross to the engine's process; use LLM, which runs here"
        )
    values = {k: v for k, v in fields["fields"].items() if k not in ("dtype", "torch_dtype")}
    config = CONFIG_MAPPING[model_type].from_dict(values)
    config.dtype = dtype
    return config
