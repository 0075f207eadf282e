# SPDX-License-Identifier: Apache-2.0
"""Attention layers."""

from vllm.model_executor.layers.attention.attention import Attention

__all__ = ["Attention"]
