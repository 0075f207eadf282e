# SPDX-License-Identifier: Apache-2.0
"""Grammars that outputs must match."""

from vllm.v1.structured_output.manager import StructuredOutputManager

__all__ = ["StructuredOutputManager"]
