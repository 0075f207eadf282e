# SPDX-License-Identifier: Apache-2.0
"""Limits on grammars that requests bring."""

from dataclasses import dataclass
from typing import Literal


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
