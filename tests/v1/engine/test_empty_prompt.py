# SPDX-License-Identifier: Apache-2.0
"""An empty prompt is refused, also where the tokenizer would add a begin marker to it."""

from typing import Any

import pytest

from tests.entrypoints.openai.scripted_engine import BOS, VOCAB_SIZE, CharTokenizer
from tests.v1.engine.utils import AcceptsAll, make_model_config
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor


def process(prompt: Any) -> list[int]:
    config = make_model_config(vocab_size=VOCAB_SIZE)
    processor = InputProcessor(config, CharTokenizer(), AcceptsAll())
    return processor.process("r", prompt, SamplingParams()).core_request.prompt_token_ids


@pytest.mark.parametrize("prompt", ["", {"prompt": ""}, [], {"prompt_token_ids": []}])
def test_an_empty_prompt_is_refused_whatever_the_tokenizer(prompt: Any) -> None:
    with pytest.raises(VLLMValidationError, match="the prompt is empty") as info:
        process(prompt)
    assert info.value.parameter == "prompt"


def test_the_begin_token_alone_is_a_prompt() -> None:
    assert process([BOS]) == process({"prompt": "", "prompt_token_ids": [BOS]}) == [BOS]
    assert process(" ") == [BOS, ord(" ")]
