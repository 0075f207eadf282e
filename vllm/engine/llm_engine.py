# SPDX-License-Identifier: Apache-2.0
"""Upstream's path to the synchronous engine."""

from vllm.v1.engine.llm_engine import LLMEngine

__all__ = ["LLMEngine"]
