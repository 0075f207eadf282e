# SPDX-License-Identifier: Apache-2.0
"""Inverse frequencies of rotary embeddings, per kind of context extension.

Each kind is a function of the checkpoint's `rope_parameters`. A kind whose frequencies change
with the length of the running sequence is served only where they cannot change: cached keys were
turned with the frequencies of their time. Knows no layers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vllm.exceptions import ConfigError

_COMMON_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeInput:
    """What the frequencies depend on.

    Attributes:
        parameters: the checkpoint's rope parameters.
        dim: entries of a head that are turned.
        max_model_len: longest sequence that will be served, in tokens.
        max_position_embeddings: longest sequence the checkpoint names, in tokens.
    """

    parameters: Mapping[str, Any]
    dim: int
    max_model_len: int
    max_position_embeddings: int

    @property
    def base(self) -> float:
        """The base of the geometric series of wavelengths."""
        return float(self.parameters["rope_theta"])

    def number(self, key: str) -> float:
        """A parameter that must be there and positive.

        Raises:
            ConfigError: it is absent, or no positive number.
        """
        value = self.parameters.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"rope parameter {key}={value!r}: a positive number is needed")
        return float(value)

    @property
    def extension(self) -> float:
        """`factor`, or where it is absent the ratio of the two context lengths."""
        if self.parameters.get("factor") is not None:
            return self.number("factor")
        return self.max_position_embeddings / self.number("original_max_position_embeddings")


Frequencies = tuple[torch.Tensor, float]
"""Inverse frequencies [dim / 2] fp32, and the factor on cosine and sine."""


def _plain(rope: RopeInput) -> torch.Tensor:
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    return 1.0 / (rope.base**exponents)


def _default(rope: RopeInput) -> Frequencies:
    return _plain(rope), 1.0


def _linear(rope: RopeInput) -> Frequencies:
    """Positions shrunk by a constant."""
    return _plain(rope) / rope.number("factor"), 1.0


def _dynamic(rope: RopeInput) -> Frequencies:
    """A base that grows with the sequence once it is longer than the checkpoint's limit."""
    rope.number("factor")
    if rope.max_model_len > rope.max_position_embeddings:
        raise ConfigError(
            f"rope_type='dynamic' changes its frequencies beyond {rope.max_position_embeddings} "
            f"tokens, which a cache of keys cannot follow; max_model_len={rope.max_model_len}: "
            f"pass at most {rope.max_position_embeddings}"
        )
    return _plain(rope), 1.0


def _llama3(rope: RopeInput) -> Frequencies:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    context, factor = rope.number("original_max_position_embeddings"), rope.number("factor")
    if high <= low:
        raise ConfigError(f"rope parameter high_freq_factor={high}: must exceed {low}")
    kept = _plain(rope)
    turns = context * kept / (2 * math.pi)
    share_kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return share_kept * kept + (1 - share_kept) * (kept / factor), 1.0


def _yarn(rope: RopeInput) -> Frequencies:
    """As llama3 in spirit, blended linearly over the index. Source: arXiv 2309.00071."""
    parameters = rope.parameters
    factor, context = rope.extension, rope.number("original_max_position_embeddings")

    def index_with(turns: float) -> float:
        """The (fractional) index of the frequency that turns so often within the context."""
        log_wavelength = math.log(context / (turns * 2 * math.pi))
        return rope.dim * log_wavelength / (2 * math.log(rope.base))

    first = index_with(parameters.get("beta_fast") or 32)
    last = index_with(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    width = last - first or 0.001
    stretched = ((torch.arange(rope.dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    kept = _plain(rope)
    return kept / factor * stretched + kept * (1 - stretched), _yarn_attention_factor(rope, factor)


def _yarn_attention_factor(rope: RopeInput, factor: float) -> float:
    parameters = rope.parameters
    if parameters.get("attention_factor") is not None:
        return rope.number("attention_factor")

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.get("mscale") and parameters.get("mscale_all_dim"):
        return temperature(rope.number("mscale")) / temperature(rope.number("mscale_all_dim"))
    return temperature(1.0)


def _longrope(rope: RopeInput) -> Frequencies:
    """A divisor per frequency; another set of them for sequences beyond the original context."""
    context = rope.number("original_max_position_embeddings")
    if rope.max_model_len > context:
        raise ConfigError(
            f"rope_type='longrope' changes its frequencies beyond {context:.0f} tokens, which a "
            f"cache of keys cannot follow; max_model_len={rope.max_model_len}: pass at most "
            f"{context:.0f}"
        )
    divisors = rope.parameters.get("short_factor")
    if not isinstance(divisors, list) or len(divisors) != rope.dim // 2:
        raise ConfigError(f"rope parameter short_factor: a list of {rope.dim // 2} is needed")
    inv_freq = _plain(rope) / torch.tensor(divisors, dtype=torch.float32)
    if rope.parameters.get("attention_factor") is not None:
        return inv_freq, rope.number("attention_factor")
    factor = rope.extension
    return inv_freq, math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class _Kind:
    compute: Callable[[RopeInput], Frequencies]
    keys: frozenset[str]


_KINDS: dict[str, _Kind] = {
    "default": _Kind(_default, frozenset()),
    "linear": _Kind(_linear, frozenset({"factor"})),
    # The original length is noted by Transformers for this kind and enters nothing.
    "dynamic": _Kind(_dynamic, frozenset({"factor", "original_max_position_embeddings"})),
    "llama3": _Kind(
        _llama3,
        frozenset(
            {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}
        ),
    ),
    "yarn": _Kind(
        _yarn,
        frozenset(
            {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast"}
            | {"beta_slow", "mscale", "mscale_all_dim", "truncate"}
        ),
    ),
    "longrope": _Kind(
        _longrope,
        frozenset(
            {"factor", "original_max_position_embeddings", "attention_factor"}
            | {"short_factor", "long_factor"}
        ),
    ),
}


def rope_frequencies(rope: RopeInput) -> Frequencies:
    """Inverse frequencies [dim / 2] in fp32 and the factor on cosine and sine.

    Raises:
        ConfigError: the kind is unknown, lacks a parameter, carries one that is not understood,
            or would change its frequencies within the length served.
    """
    parameters = rope.parameters
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    kind = _KINDS.get(rope_type) if isinstance(rope_type, str) else None
    if kind is None:
        raise ConfigError(
            f"rope_type={rope_type!r} is not supported; supported are " + ", ".join(sorted(_KINDS))
        )
    unknown = [
        key
        for key, value in parameters.items()
        if value is not None and key not in kind.keys and key not in _COMMON_KEYS
    ]
    if unknown:
        raise ConfigError(
            f"rope_type={rope_type!r}: parameters {', '.join(map(repr, unknown))} are not "
            "understood, and leaving them out would change the model's answers"
        )
    rope.number("rope_theta")
    return kind.compute(rope)
