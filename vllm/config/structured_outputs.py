# SPDX-License-Identifier: Apache-2.0
"""Limits on grammars that requests bring."""

from dataclasses import dataclass
from typing import Literal

from vllm.exceptions import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsConfig:
    """Structured outputs.

    Attributes:
        backend: the grammar library; "auto" is llguidance, the only one.
        max_spec_bytes: largest schema, expression, grammar or list of choices, in bytes.
        max_choices: most entries of a choice list.
        compile_timeout_s: longest compilation of one grammar, in seconds.
        cache_size: compiled grammars kept for reuse.
    """

    backend: Literal["auto", "guidance"] = "auto"
    max_spec_bytes: int = 65_536
    max_choices: int = 1_024
    compile_timeout_s: float = 10.0
    cache_size: int = 64

    def __post_init__(self) -> None:
        if self.backend not in ("auto", "guidance"):
            raise ConfigError(
                f"structured_outputs_config: backend={self.backend!r} is not supported; pass "
                "'auto' or 'guidance'"
            )
        for name in ("max_spec_bytes", "max_choices", "cache_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(
                    f"structured_outputs_config: {name}={value!r}: pass a whole number, at least 1"
                )
        seconds = self.compile_timeout_s
        if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
            raise ConfigError(
                f"structured_outputs_config: compile_timeout_s={seconds!r}: pass seconds above 0"
            )
