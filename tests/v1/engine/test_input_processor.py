# SPDX-License-Identifier: Apache-2.0
"""Every wrong prompt and parameter is refused in front, by name."""

from typing import Any

import numpy as np
import pytest

from tests.detokenizer.utils import piece_tokenizer
from tests.v1.engine.utils import PIECES, AcceptsAll, make_input_processor, make_model_config
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

EOS, VOCAB = 9, 11


def process(prompt: Any, processor: InputProcessor | None = None, **params: Any) -> Any:
    processor = processor or make_input_processor()
    return processor.process("r", prompt, SamplingParams(**params)).core_request


@pytest.mark.parametrize(
    "prompt",
    ["ABC", {"prompt": "ABC"}, {"prompt_token_ids": [0, 1, 2]}, [0, 1, 2], [np.int64(0), 1, 2]],
)
def test_the_forms_of_a_prompt(prompt: Any) -> None:
    token_ids = process(prompt).prompt_token_ids
    assert token_ids == [0, 1, 2]
    assert {type(token_id) for token_id in token_ids} == {int}


@pytest.mark.parametrize(
    ("prompt", "parameter"),
    [
        ([0, 999_999], "prompt"),
        ([-1], "prompt"),
        ([VOCAB], "prompt"),
        ([], "prompt"),
        ("", "prompt"),
        ([0, "a"], "prompt_token_ids"),
        ([True], "prompt_token_ids"),
        ([np.float32(1)], "prompt_token_ids"),
        ([np.bool_(True)], "prompt_token_ids"),
        ([[0]], "prompt_token_ids"),
        (5, "prompt_token_ids"),
        (None, "prompt_token_ids"),
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "A", "multi_modal_data": {}}, "multi_modal_data"),
        ({"prompt": "A", "cache_salt": ""}, "cache_salt"),
        ([0] * 64, "prompt"),
        ([0] * 80, "prompt"),
    ],
)
def test_wrong_prompts(prompt: Any, parameter: str) -> None:
    with pytest.raises(VLLMValidationError) as info:
        process(prompt)
    assert info.value.parameter == parameter


@pytest.mark.parametrize(
    ("params", "parameter"),
    [
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"logit_bias": {999_999: 5.0}}, "logit_bias"),
        ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids"),
        ({"logprobs": 12}, "logprobs"),
        ({"prompt_logprobs": 12}, "prompt_logprobs"),
        ({"max_tokens": 62}, "max_tokens"),
        ({"max_tokens": None, "min_tokens": 62}, "min_tokens"),
    ],
)
def test_wrong_parameters(params: dict[str, Any], parameter: str) -> None:
    with pytest.raises(VLLMValidationError) as info:
        process("ABC", **params)
    assert info.value.parameter == parameter


def test_fields_changed_after_construction_are_checked_again() -> None:
    params = SamplingParams()
    params.temperature = float("nan")
    with pytest.raises(VLLMValidationError, match="temperature"):
        make_input_processor().process("r", "A", params)
    params.temperature = "hot"  # type: ignore[assignment]
    with pytest.raises(VLLMValidationError):
        make_input_processor().process("r", "A", params)


@pytest.mark.parametrize(("length", "max_tokens"), [(80, 16), (64, 1), (60, 10)])
def test_a_message_about_length_names_all_numbers(length: int, max_tokens: int) -> None:
    with pytest.raises(VLLMValidationError, match=rf"{length} tokens.*\b64\b") as info:
        process([0] * length, max_tokens=max_tokens)
    assert "-" not in str(info.value).replace("max_model_len", "")


def test_the_longest_prompt_yields_one_token() -> None:
    assert process([0] * 63, max_tokens=1).sampling_params.max_tokens == 1
    assert process([0] * 63, max_tokens=None).sampling_params.max_tokens == 1


def test_an_upper_bound_may_be_lowered_by_the_context() -> None:
    processor = make_input_processor()
    params = SamplingParams(max_tokens=100)
    request = processor.process("r", [0] * 60, params, cap_max_tokens=True).core_request
    assert request.sampling_params.max_tokens == 4
    assert params.max_tokens == 100


def test_what_needs_the_model_is_resolved() -> None:
    request = process("ABC", logprobs=-1, prompt_logprobs=-1, bad_words=["AB"])
    params = request.sampling_params
    assert (params.logprobs, params.prompt_logprobs) == (VOCAB, VOCAB)
    assert params.eos_token_ids == [EOS]
    assert [0, 1] in params.bad_words_token_ids


def test_the_bound_on_logprobs_covers_the_whole_vocabulary() -> None:
    processor = make_input_processor(max_logprobs=5)
    with pytest.raises(VLLMValidationError, match="the vocabulary, 11"):
        process("A", processor, logprobs=-1)
    assert process("A", processor, logprobs=5).sampling_params.logprobs == 5
    unbounded = make_input_processor(max_logprobs=-1)
    assert process("A", unbounded, logprobs=-1).sampling_params.logprobs == VOCAB


def test_seeds() -> None:
    assert process("A", seed=5).sampling_params.seed == 5
    assert process("A").sampling_params.seed != process("A").sampling_params.seed
    drawn = []
    for _ in range(2):
        processor = make_input_processor(seed=3)
        drawn.append([process("A", processor).sampling_params.seed for _ in range(3)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


def test_without_tokenizer_only_ids_are_served() -> None:
    processor = InputProcessor(make_model_config(), None, AcceptsAll())
    assert process([0, 1], processor).prompt_token_ids == [0, 1]
    for prompt, params in (("A", {}), ([0], {"stop": ["x"]}), ([0], {"bad_words": ["x"]})):
        with pytest.raises(VLLMValidationError, match=r"no tokenizer|needs a tokenizer"):
            process(prompt, processor, **params)


def test_adapters_and_wild_priorities_are_refused() -> None:
    processor = make_input_processor()
    with pytest.raises(VLLMValidationError, match="adapters"):
        processor.process("r", "A", SamplingParams(), lora_request=LoRARequest("x", 1))
    for priority in (2**40, 1.5, True):
        with pytest.raises(VLLMValidationError, match="priority"):
            processor.process("r", "A", SamplingParams(), priority=priority)  # type: ignore[arg-type]


def test_priorities_need_the_policy_that_heeds_them() -> None:
    with pytest.raises(VLLMValidationError, match='scheduling_policy="priority"') as info:
        make_input_processor().process("r", "A", SamplingParams(), priority=1)
    assert info.value.parameter == "priority"
    processor = InputProcessor(
        make_model_config(), piece_tokenizer(*PIECES), AcceptsAll(), takes_priority=True
    )
    assert processor.process("r", "A", SamplingParams(), priority=1).core_request.priority == 1


def test_the_callers_parameters_are_left_alone() -> None:
    params = SamplingParams(max_tokens=None)
    make_input_processor().process("r", "A", params)
    assert (params.max_tokens, params.seed, params.eos_token_ids) == (None, None, [])
