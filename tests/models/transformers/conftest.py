# SPDX-License-Identifier: Apache-2.0
"""Engines over tiny Transformers models; one lives at a time."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.transformers.tiny import make_model


@pytest.fixture
def make_llm(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Builds a checkpoint of a model type and serves it through the Transformers backend."""
    from vllm import LLM

    engines: list[Any] = []

    def make(model_type: str, *, path: Path | None = None, **options: Any) -> Any:
        defaults = {
            "model_impl": "transformers",
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "max_model_len": 64,
            "kv_cache_memory_bytes": 1 << 22,
            "max_num_batched_tokens": 16,
            "seed": 0,
        }
        where = path or make_model(tmp_path / model_type, model_type)
        engines.append(LLM(model=str(where), **(defaults | options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()
