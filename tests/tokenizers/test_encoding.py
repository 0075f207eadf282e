# SPDX-License-Identifier: Apache-2.0
"""One begin token, whoever wrote it; long texts leave the event loop."""

import asyncio
import threading

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from vllm.tokenizers.encoding import LONG_TEXT_CHARS, encode_text, run_tokenizer


def make_tokenizer(*, adds_bos: bool) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>"])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


@pytest.mark.parametrize("text", ["a", "<s>a", "<s><s>a"])
def test_a_tokenizer_that_adds_the_begin_token_adds_one(text: str) -> None:
    assert encode_text(make_tokenizer(adds_bos=True), text) == [0, 1]


@pytest.mark.parametrize(("text", "ids"), [("a", [1]), ("<s>a", [0, 1]), ("<s><s>a", [0, 0, 1])])
def test_without_special_tokens_the_text_stands(text: str, ids: list[int]) -> None:
    assert encode_text(make_tokenizer(adds_bos=True), text, add_special_tokens=False) == ids


def test_a_tokenizer_that_adds_none_adds_none() -> None:
    assert encode_text(make_tokenizer(adds_bos=False), "a") == [1]


def test_long_texts_share_one_thread() -> None:
    async def scenario() -> None:
        here = threading.get_ident()
        calls = [run_tokenizer(threading.get_ident, size=LONG_TEXT_CHARS + 1) for _ in range(4)]
        assert await run_tokenizer(threading.get_ident, size=LONG_TEXT_CHARS) == here
        others = set(await asyncio.gather(*calls))
        assert len(others) == 1
        assert here not in others

    asyncio.run(scenario())
