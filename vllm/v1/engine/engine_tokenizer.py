# SPDX-License-Identifier: Apache-2.0
"""The tokenizer an engine is configured with."""

from typing import Any

from vllm.config import ModelConfig


def load_tokenizer(model_config: ModelConfig, *, download_dir: str | None = None) -> Any:
    """Load it; takes up to a second, so nobody does it before it is needed.

    Args:
        download_dir: folder for files from the hub (`LoadConfig.download_dir`).
    """
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(
        model_config.tokenizer,
        tokenizer_mode=model_config.tokenizer_mode,
        trust_remote_code=model_config.trust_remote_code,
        revision=model_config.tokenizer_revision,
        download_dir=download_dir,
    )
