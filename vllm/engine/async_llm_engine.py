# SPDX-License-Identifier: Apache-2.0
"""Upstream's path to the asynchronous engine."""

from vllm.v1.engine.async_llm import AsyncLLM as AsyncLLMEngine

__all__ = ["AsyncLLMEngine"]
