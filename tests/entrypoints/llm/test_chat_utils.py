# SPDX-License-Identifier: Apache-2.0
"""Conversations to token ids: the server's template, text only, one begin token."""

from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.conftest import TinyModel
from vllm.entrypoints.chat_utils import render_chat, template_variables
from vllm.exceptions import VLLMValidationError

USER = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: TinyModel) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model())


def test_ids_are_those_of_transformers(tokenizer: Any) -> None:
    messages = [*USER, {"role": "assistant", "content": "the dog"}, *USER]
    want = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert render_chat(tokenizer, messages) == want


def test_there_is_one_begin_token(tokenizer: Any) -> None:
    ids = render_chat(tokenizer, USER)
    assert ids.count(tokenizer.bos_token_id) == 1
    doubled = render_chat(tokenizer, USER, chat_template="<s><s>{{ messages[0].content }}")
    assert doubled.count(tokenizer.bos_token_id) == 1


def test_text_parts_are_joined(tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "dog"}]
    assert render_chat(tokenizer, [{"role": "user", "content": parts}]) == render_chat(
        tokenizer, [{"role": "user", "content": "hello\ndog"}]
    )


def test_the_last_message_can_be_continued(tokenizer: Any) -> None:
    messages = [*USER, {"role": "assistant", "content": "the lazy"}]
    ids = render_chat(tokenizer, messages, add_generation_prompt=False, continue_final_message=True)
    assert tokenizer.decode(ids).endswith("<|assistant|>the lazy")


def test_variables_of_the_template_may_be_set_and_no_others(tokenizer: Any) -> None:
    template = "{{ bos_token }}{% if think %}T{% endif %}{{ messages[0].content }}"
    assert template_variables(template) == {"think", "bos_token"}
    plain = render_chat(tokenizer, USER, chat_template=template)
    thinking = render_chat(
        tokenizer, USER, chat_template=template, chat_template_kwargs={"think": True}
    )
    assert len(thinking) > len(plain)
    for name in ("chat_template", "tokenize", "messages", "bos_token", "return_dict", "other"):
        with pytest.raises(VLLMValidationError, match="not a variable"):
            render_chat(tokenizer, USER, chat_template=template, chat_template_kwargs={name: "x"})
    with pytest.raises(VLLMValidationError, match="characters"):
        render_chat(
            tokenizer, USER, chat_template=template, chat_template_kwargs={"think": "x" * 9999}
        )


def test_tool_arguments_reach_the_template_as_an_object(tokenizer: Any) -> None:
    template = "{{ messages[1].tool_calls[0].function.arguments.city }}"
    call = {"id": "1", "type": "function"}
    call |= {"function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert tokenizer.decode(render_chat(tokenizer, messages, chat_template=template)) == "Rome"
    call["function"]["arguments"] = "{broken"
    with pytest.raises(VLLMValidationError, match="not valid JSON"):
        render_chat(tokenizer, messages, chat_template=template)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty"),
        (["hello"], "role"),
        ([{"content": "x"}], "role"),
        ([{"role": "user"}], "missing"),
        ([{"role": "user", "content": 5}], "a text or a list"),
        ([{"role": "user", "content": {"type": "text"}}], "a text or a list"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url' are not supported"),
        ([{"role": "user", "content": [{"type": "text"}]}], "pass a string"),
        ([{"role": "user", "content": ["x"]}], "'str' are not supported"),
        ([{"role": "assistant", "tool_calls": [{}]}], "function with a name"),
    ],
)
def test_wrong_messages_are_refused(tokenizer: Any, messages: Any, reason: str) -> None:
    with pytest.raises(VLLMValidationError, match=reason):
        render_chat(tokenizer, messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no such role') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ 1 + messages[0].content }}",
        "{{ messages[",
    ],
)
def test_a_template_that_fails_is_an_answer_without_traces(tokenizer: Any, template: str) -> None:
    with pytest.raises(VLLMValidationError, match="template") as info:
        render_chat(tokenizer, USER, chat_template=template)
    assert "Traceback" not in str(info.value)
    assert "0x" not in str(info.value)


def test_a_tokenizer_without_template_is_named(tiny_model: TinyModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    tokenizer.chat_template = None
    with pytest.raises(VLLMValidationError, match="no chat template"):
        render_chat(tokenizer, USER)
