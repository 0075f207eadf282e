# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, as the model's makers defined it."""

from vllm.tokenizers.registry import get_tokenizer

__all__ = ["get_tokenizer"]
