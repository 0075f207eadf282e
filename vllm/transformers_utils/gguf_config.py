# SPDX-License-Identifier: Apache-2.0
"""A Transformers configuration from the metadata of a GGUF file.

Owns the table of architectures. Every key under the architecture's own prefix must be understood:
an unknown one could change the model's numbers, so it is refused by name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm.exceptions import ConfigError
from vllm.transformers_utils.gguf_utils import GGUFFile

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GGUFArchitecture:
    """One architecture.

    Attributes:
        config_class: name of the class in Transformers.
        model_class: name of the model class.
        permutes_qk: whether the file holds the rows of q and k in the order that turns
            neighbours together, where Transformers turns the two halves of a head.
    """

    config_class: str
    model_class: str
    permutes_qk: bool


ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    "llama": GGUFArchitecture("LlamaConfig", "LlamaForCausalLM", permutes_qk=True),
    "qwen2": GGUFArchitecture("Qwen2Config", "Qwen2ForCausalLM", permutes_qk=False),
    "qwen3": GGUFArchitecture("Qwen3Config", "Qwen3ForCausalLM", permutes_qk=False),
}
# Files of this architecture come from Mistral too; only the window tells the two apart.
_LLAMA_WITH_WINDOW = GGUFArchitecture("MistralConfig", "MistralForCausalLM", permutes_qk=True)

_UNDERSTOOD = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "expert_used_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "vocab_size",
    }
)


def gguf_architecture(file: GGUFFile) -> GGUFArchitecture:
    """The table's entry for a file.

    Raises:
        ConfigError: the architecture is not supported.
    """
    name = file.architecture
    found = ARCHITECTURES.get(name)
    if found is None:
        raise ConfigError(
            f"{file.path.name}: the GGUF architecture {name!r} is not supported; supported are "
            f"{', '.join(ARCHITECTURES)}. Use a safetensors checkpoint of this model instead"
        )
    if name == "llama" and file.metadata.get("llama.attention.sliding_window"):
        return _LLAMA_WITH_WINDOW
    return found


def gguf_config_fields(file: GGUFFile) -> tuple[str, dict[str, Any]]:
    """Name of the configuration class, and its fields.

    Raises:
        ConfigError: the file describes something that is not supported.
        ModelLoadError: a value is absent or of the wrong type.
    """
    arch = gguf_architecture(file)
    keys = _Keys(file)
    keys.refuse_unknown()
    num_heads = keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", _default_head_dim(file, keys, num_heads))
    _check_head(file, keys, head_dim)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError(f"{file.path.name} holds no token_embd.weight matrix")
    fields: dict[str, Any] = {
        "architectures": [arch.model_class],
        "vocab_size": embedding.shape[0],
        "hidden_size": keys.count("embedding_length"),
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope_parameters(file, keys, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if arch.config_class == "Qwen2Config":
        # Qwen2's configuration has no such field: its heads always divide the hidden size.
        if head_dim * num_heads != fields["hidden_size"]:
            raise ConfigError(f"{file.path.name}: head size {head_dim} does not fit qwen2")
        del fields["head_dim"]
    if arch.config_class == "LlamaConfig":
        fields["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
        fields["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    fields |= _window_fields(arch, keys)
    return arch.config_class, fields


def gguf_config(file: GGUFFile, overrides: Mapping[str, Any] | None = None) -> "PretrainedConfig":
    """The configuration object.

    Raises:
        ConfigError: as `gguf_config_fields`.
        ModelLoadError: as `gguf_config_fields`.
    """
    import transformers

    class_name, fields = gguf_config_fields(file)
    return getattr(transformers, class_name)(**(fields | dict(overrides or {})))


def gguf_eos_token_ids(file: GGUFFile) -> list[int]:
    """Ids that end a generation: end of sequence, and end of turn where the file names one."""
    names = ("eos", "eot")
    values = [file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names]
    return sorted({value for value in values if isinstance(value, int)})


class _Keys:
    """Metadata below the architecture's prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.prefix = f"{file.architecture}."

    def refuse_unknown(self) -> None:
        own = [k.removeprefix(self.prefix) for k in self.file.metadata if k.startswith(self.prefix)]
        unknown = sorted(set(own) - _UNDERSTOOD)
        if unknown:
            raise ConfigError(
                f"{self.file.path.name}: the keys {', '.join(self.prefix + k for k in unknown)} "
                "are not understood, and leaving them out could change the model's answers"
            )
        if self.file.metadata.get(self.prefix + "expert_count"):
            raise ConfigError(f"{self.file.path.name}: GGUF files with experts are not supported")

    def raw(self, key: str) -> Any:
        return self.file.metadata.get(self.prefix + key)

    def count(self, key: str, default: Any = ...) -> int:
        """A positive int; a list of equal ones counts as one."""
        value = self.raw(key)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        elif isinstance(value, list):
            raise ConfigError(
                f"{self.file.path.name}: {self.prefix}{key} differs from layer to layer; one "
                "value for all layers is supported"
            )
        elif value is None:
            value = self.file.get(self.prefix + key, int, default)
        if type(value) is not int or value < 1:
            raise ConfigError(f"{self.file.path.name}: {self.prefix}{key}={value!r} is no count")
        return value

    def number(self, key: str, default: Any = ...) -> float:
        value: float = self.file.get(self.prefix + key, float, default)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{self.file.path.name}: {self.prefix}{key}={value!r} is no size")
        # Stored as fp32; the nearest short decimal is what was meant (1e-5, not 9.99999975e-06).
        return float(str(np.float32(value)))


def _default_head_dim(file: GGUFFile, keys: _Keys, num_heads: int) -> int:
    hidden = keys.count("embedding_length")
    if keys.raw("attention.key_length") is None and hidden % num_heads:
        raise ConfigError(
            f"{file.path.name}: {hidden} entries do not divide into {num_heads} heads"
        )
    return max(1, hidden // num_heads)


def _check_head(file: GGUFFile, keys: _Keys, head_dim: int) -> None:
    for key, meaning in (
        ("attention.value_length", "value heads of another size than the key heads"),
        ("rope.dimension_count", "a rotary embedding of a part of each head"),
    ):
        value = keys.count(key, head_dim)
        if value != head_dim:
            raise ConfigError(
                f"{file.path.name}: {keys.prefix}{key}={value} with heads of {head_dim}: {meaning} "
                "is not supported"
            )


def _window_fields(arch: GGUFArchitecture, keys: _Keys) -> dict[str, Any]:
    window = keys.raw("attention.sliding_window")
    if not window:
        return {"sliding_window": None} if arch.config_class == "MistralConfig" else {}
    if arch.config_class != "MistralConfig":
        raise ConfigError(
            f"{keys.file.path.name}: {keys.prefix}attention.sliding_window={window!r} is not "
            "supported, as the file does not say which layers it is for"
        )
    return {"sliding_window": keys.count("attention.sliding_window")}


def _rope_parameters(file: GGUFFile, keys: _Keys, head_dim: int) -> dict[str, Any]:
    theta = keys.number("rope.freq_base", 10000.0)
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    kind = keys.raw("rope.scaling.type")
    if kind is None and keys.raw("rope.scale_linear") not in (None, 1.0):
        kind = "linear"
    if ROPE_FREQS in file.tensors:
        if kind not in (None, "none"):
            raise ConfigError(f"{file.path.name}: {ROPE_FREQS} beside rope scaling {kind!r}")
        return parameters | _llama3_parameters(file, theta, head_dim)
    if kind in (None, "none"):
        return parameters
    factor = keys.number("rope.scaling.factor", keys.raw("rope.scale_linear") or ...)
    if kind == "linear":
        return parameters | {"rope_type": "linear", "factor": factor}
    if kind == "yarn" and keys.number("rope.scaling.attn_factor", 1.0) == 1.0:
        original = keys.count("rope.scaling.original_context_length")
        return parameters | {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise ConfigError(
        f"{file.path.name}: rope scaling {kind!r} (attn_factor "
        f"{keys.raw('rope.scaling.attn_factor')}) is not supported; linear and yarn are"
    )


def _llama3_parameters(file: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    """The Llama 3 scaling whose factors the file's `rope_freqs` are.

    The file holds only the resulting factor per frequency. All published models share the band
    (1, 4) and the original length 8192 and differ in the factor, the largest of the tensor; the
    factors that follow from these are compared with the file's, and anything else is refused.
    """
    tensor = file.tensors[ROPE_FREQS]
    if tensor.tensor_type.name != "F32" or tensor.shape != (head_dim // 2,):
        raise ConfigError(f"{file.path.name}: {ROPE_FREQS} is not F32 of half a head's size")
    factors = file.rows(tensor).view("<f4")[0].astype(np.float64)
    parameters: dict[str, Any] = {
        "factor": float(str(np.float32(factors.max()))),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = llama3_rope_factors(theta, head_dim, **parameters)
    if not np.allclose(factors, expected, rtol=1e-4):
        raise ConfigError(
            f"{file.path.name}: {ROPE_FREQS} is not the scaling of Llama 3 (band 1 to 4, original "
            "length 8192), the only one that is supported in this form"
        )
    return {"rope_type": "llama3"} | parameters


def llama3_rope_factors(
    theta: float,
    head_dim: int,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> np.ndarray:
    """By what each frequency is divided: fp64 [head_dim / 2].

    Long waves are stretched by `factor`, short ones not at all, those between by a blend.
    """
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = original_max_position_embeddings / wavelength
    blend = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / factor + blend)
