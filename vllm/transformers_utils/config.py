# SPDX-License-Identifier: Apache-2.0
"""A model's configuration and generation defaults, from a folder or a GGUF file.

Code that comes with a checkpoint is run only with consent; a configuration that Transformers
knows by itself never needs it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.exceptions import ConfigError
from vllm.transformers_utils.gguf_config import gguf_config, gguf_eos_token_ids
from vllm.transformers_utils.gguf_utils import GGUFFile, is_gguf

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"


def get_config(
    model_path: Path | str,
    revision: str | None = None,
    trust_remote_code: bool = False,
    hf_overrides: Mapping[str, Any] | None = None,
) -> "PretrainedConfig":
    """The configuration of a local model.

    Args:
        model_path: a folder with config.json, or a .gguf file (see `repo_utils.resolve_model`).
        revision: revision of code that comes with the checkpoint.
        trust_remote_code: consent to run such code.
        hf_overrides: fields to replace; a mapping is merged into a field that is one.

    Raises:
        ConfigError: there is none, it is damaged, of an unknown type, or needs code to be run.
        ModelLoadError: the GGUF file is damaged.
    """
    path = Path(model_path)
    if is_gguf(path):
        return gguf_config(GGUFFile(path), hf_overrides)
    from transformers import CONFIG_MAPPING, AutoConfig

    fields = _merge(_read_json(path / CONFIG_NAME), hf_overrides or {})
    model_type = fields.get("model_type")
    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        return CONFIG_MAPPING[model_type].from_dict(fields)
    if "auto_map" not in fields:
        raise ConfigError(
            f"{CONFIG_NAME}: model_type={model_type!r} is not known to the installed Transformers"
        )
    if not trust_remote_code:
        raise ConfigError(
            f"{CONFIG_NAME}: model_type={model_type!r} is defined by code that comes with the "
            "checkpoint; pass trust_remote_code only if you trust its authors"
        )
    config = AutoConfig.from_pretrained(path, trust_remote_code=True, code_revision=revision)
    config.update(_merge(config.to_dict(), hf_overrides) if hf_overrides else {})
    return config


def get_generation_config(model_path: Path | str) -> dict[str, Any]:
    """The fields of generation_config.json; empty if there is none. GGUF: the token ids.

    Raises:
        ConfigError: the file is damaged.
        ModelLoadError: the GGUF file is damaged.
    """
    path = Path(model_path)
    if is_gguf(path):
        file = GGUFFile(path)
        return {
            "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": gguf_eos_token_ids(file),
        }
    file_path = path / GENERATION_CONFIG_NAME
    return _read_json(file_path) if file_path.is_file() else {}


def get_eos_token_ids(
    hf_config: "PretrainedConfig", generation_config: Mapping[str, Any]
) -> tuple[int, ...]:
    """Ids that end generation: those of the generation config and of the model's."""
    ids: set[int] = set()
    for value in (
        generation_config.get("eos_token_id"),
        getattr(hf_config.get_text_config(), "eos_token_id", None),
    ):
        values = value if isinstance(value, list | tuple) else [value]
        ids.update(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    return tuple(sorted(ids))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_hook=_special_float)
    except FileNotFoundError:
        raise ConfigError(
            f"{path.parent.name} holds no {path.name}; pass a folder in the Transformers layout "
            "or a .gguf file"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path.name} is damaged: it holds no object")
    return content


def _special_float(value: dict[str, Any]) -> Any:
    """Transformers writes what JSON has no number for as {"__float__": "Infinity"}."""
    name = value.get("__float__")
    return float(name) if len(value) == 1 and name in ("Infinity", "-Infinity", "NaN") else value


def _merge(fields: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for key, value in overrides.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, Mapping)
        merged[key] = _merge(old, value) if both and old is not None else value
    return merged
