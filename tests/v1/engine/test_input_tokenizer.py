# SPDX-License-Identifier: Apache-2.0
"""The engine's tokenizer comes from where its configuration says."""

from typing import Any

import pytest

import vllm.tokenizers
from tests.v1.engine.utils import make_model_config
from vllm.v1.engine.engine_tokenizer import load_tokenizer


def test_the_download_folder_is_the_configured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(vllm.tokenizers, "get_tokenizer", lambda _name, **k: seen.update(k))
    load_tokenizer(make_model_config(), download_dir="/folder")
    assert seen["download_dir"] == "/folder"
