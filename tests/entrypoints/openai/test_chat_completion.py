# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions over a scripted engine: rendering, streams, logprobs, refusals."""

import json

import pytest

from tests.entrypoints.openai.scripted_engine import (
    BOS,
    Script,
    ScriptedEngine,
    Step,
    row,
    say,
)
from vllm.exceptions import RequestFailedError
from vllm.logprobs import Logprob

pytestmark = pytest.mark.asyncio

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


async def chat(api, **fields):
    return await api.post(PATH, {"messages": MESSAGES, **fields})


async def stream(api, **fields):
    return await api.stream(PATH, **{"messages": MESSAGES, **fields})


async def test_answer_is_an_assistant_turn(api):
    body = (await chat(api)).json()
    choice = body["choices"][0]
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert choice["message"] == {
        "role": "assistant",
        "content": "hello",
        "refusal": None,
        "tool_calls": [],
    }
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 5


async def test_chat_and_tokenize_use_the_same_ids_with_one_begin_marker(api):
    usage = (await chat(api)).json()["usage"]
    ids = api.engine.seen[0][0]["prompt_token_ids"]
    shown = (await api.post("/tokenize", {"messages": MESSAGES})).json()
    assert shown["tokens"] == ids
    assert usage["prompt_tokens"] == len(ids)
    assert ids.count(BOS) == 1


async def test_text_parts_are_taken(api):
    parts = [{"type": "text", "text": "hi"}]
    assert (await chat(api, messages=[{"role": "user", "content": parts}])).status_code == 200
    first = api.engine.seen[0][0]["prompt_token_ids"]
    await chat(api)
    assert api.engine.seen[1][0]["prompt_token_ids"] == first


@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_stream_equals_whole_answer_for_every_cut(make_api, cut):
    text = '{"a": "\U0001f600 e\u0301 \u6f22"}'
    steps = [
        Step(
            text[i : i + cut],
            [ord(c) for c in text[i : i + cut]],
            [row(ord(c), c) for c in text[i : i + cut]],
        )
        for i in range(0, len(text), cut)
    ]
    api = make_api(ScriptedEngine([Script(steps, "length")]))
    fields = {"logprobs": True, "top_logprobs": 1}
    whole = (await chat(api, **fields)).json()
    got = await stream(api, **fields, stream_options={"include_usage": True})
    assert got.is_done
    assert got.text() == whole["choices"][0]["message"]["content"] == text
    assert got.chunks[-1]["usage"] == whole["usage"]
    assert got.choices()[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    entries = [e for c in got.choices() if c["logprobs"] for e in c["logprobs"]["content"]]
    assert entries == whole["choices"][0]["logprobs"]["content"]
    assert bytes(b for e in entries for b in e["bytes"]).decode() == text


async def test_the_first_chunk_has_the_role_and_no_other(make_api):
    api = make_api(ScriptedEngine([say("ab"), say("cde")]))
    got = await stream(api, n=2)
    for index, text in enumerate(("ab", "cde")):
        deltas = [c["delta"] for c in got.choices(index)]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert not any("role" in delta for delta in deltas[1:])
        assert got.text(index) == text
        assert all(delta.get("content") != "" for delta in deltas[1:])


async def test_the_last_chunk_may_have_no_text(make_api):
    steps = [Step("ab", [97, 98], [row(97, "a"), row(98, "b")]), Step("", [BOS])]
    got = await stream(make_api(ScriptedEngine([Script(steps)])))
    assert [c["delta"] for c in got.choices()[1:]] == [{"content": "ab"}, {}]
    assert got.choices()[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("options", "has_usage_key", "num_usage"),
    [
        (None, False, 0),
        ({}, False, 0),
        ({"include_usage": False, "continuous_usage_stats": True}, False, 0),
        ({"include_usage": True}, True, 1),
        ({"include_usage": True, "continuous_usage_stats": True}, True, 7),
    ],
)
async def test_usage_in_streams_comes_as_asked(api, options, has_usage_key, num_usage):
    got = await stream(api, stream_options=options)
    assert all(("usage" in chunk) is has_usage_key for chunk in got.chunks)
    assert sum(bool(chunk.get("usage")) for chunk in got.chunks) == num_usage
    if num_usage:
        assert got.chunks[-1]["choices"] == []


async def test_logprobs_show_as_many_alternatives_as_asked(api):
    for num_top in (0, 1, 2):
        body = (await chat(api, logprobs=True, top_logprobs=num_top)).json()
        entry = body["choices"][0]["logprobs"]["content"][0]
        assert (entry["token"], entry["bytes"]) == ("h", [104])
        assert len(entry["top_logprobs"]) == num_top
    assert entry["top_logprobs"][1]["logprob"] == -9999.0
    assert (await chat(api)).json()["choices"][0]["logprobs"] is None


async def test_bytes_of_split_characters_join_to_the_character(make_api):
    class Bytes:
        all_special_ids = ()
        bos_token_id = None

        def convert_ids_to_tokens(self, ids):
            return [{1: "\u00f0", 2: "<0x9F>", 3: "\u013a", 4: "\u0122"}[i] for i in ids]

        def get_vocab(self):
            return {"<0x9F>": 2}

        def encode(self, text, add_special_tokens=True):
            return [9]

        def get_chat_template(self, template, tools=None):
            return "x"

        def apply_chat_template(self, messages, **options):
            return "x"

    rows = [{i: Logprob(-1.0, 1, "\ufffd")} for i in (1, 2, 3)]
    steps = [Step("", [1], rows[:1]), Step("", [2], rows[1:2]), Step("\U0001f600", [3], rows[2:])]
    api = make_api(ScriptedEngine([Script(steps)], tokenizer=Bytes()))
    body = (await chat(api, logprobs=True)).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [e["bytes"] for e in content[:2]] == [[0xF0], [0x9F]]


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, None),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
    ],
)
async def test_max_tokens_default_is_the_room_left(api, fields, max_tokens):
    assert (await chat(api, **fields)).status_code == 200
    assert api.engine.seen[0][1].max_tokens == max_tokens


@pytest.mark.parametrize(
    ("fields", "max_tokens"), [({}, 9), ({"max_tokens": 4}, 4), ({"min_tokens": 12}, 12)]
)
async def test_max_tokens_default_may_be_the_models(make_api, fields, max_tokens):
    engine = ScriptedEngine(generation_defaults={"max_tokens": 9})
    await chat(make_api(engine), **fields)
    assert engine.seen[0][1].max_tokens == max_tokens
    capped = ScriptedEngine(generation_defaults={"max_tokens": 900})
    await chat(make_api(capped))
    assert capped.seen[0][1].max_tokens == 64 - len(capped.seen[0][0]["prompt_token_ids"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "magic": 1}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}] * 10_000}, "messages"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "http://169.254.169.254"}}
                        ],
                    }
                ]
            },
            "messages",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}]},
            "messages",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"logprobs": 2}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -5}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"prompt": "x"}, "prompt"),
    ],
)
async def test_wrong_field_is_named(api, fields, param):
    response = await chat(api, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
    assert not api.engine.seen


async def test_neutral_tool_fields_pass(api):
    fields = {"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert (await chat(api, **fields)).status_code == 200
    shown = await api.post("/tokenize", {"messages": MESSAGES, **fields})
    assert shown.json()["tokens"] == api.engine.seen[0][0]["prompt_token_ids"]
    assert ord("f") in shown.json()["tokens"]
    fields = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    assert (await chat(api, **fields)).status_code == 200


@pytest.mark.parametrize("n", [1, 2])
async def test_empty_output_is_an_answer(make_api, n):
    api = make_api(ScriptedEngine([Script([Step("", [BOS])])]))
    whole = (await chat(api, n=n)).json()
    assert [c["message"]["content"] for c in whole["choices"]] == [""] * n
    got = await stream(api, n=n)
    assert [got.choices(i)[-1]["finish_reason"] for i in range(n)] == ["stop"] * n


async def test_an_error_amid_a_stream_is_an_event_and_the_end(make_api):
    engine = ScriptedEngine(late_error=RequestFailedError("the model gave no finite logits"))
    got = await stream(make_api(engine))
    assert not got.is_done and got.chunks[-1]["error"]["code"] == 500
    json.dumps(got.chunks)


async def test_without_a_tokenizer_chat_is_refused(make_api):
    response = await chat(make_api(ScriptedEngine(tokenizer=None)))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
