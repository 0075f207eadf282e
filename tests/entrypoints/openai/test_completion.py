# SPDX-License-Identifier: Apache-2.0
"""/v1/completions over a scripted engine: forms of prompts, streams, logprobs, usage."""

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
from vllm.exceptions import EngineDeadError, EngineOverloadedError, RequestFailedError

pytestmark = pytest.mark.asyncio


async def test_answer_carries_text_usage_and_finish_reason(make_api):
    engine = ScriptedEngine([say("hello", stop_reason="!")], num_cached_tokens=2)
    response = await make_api(engine).complete(model="alias")
    body = response.json()
    assert response.status_code == 200
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
        "hello",
        "stop",
        "!",
    )
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert (body["object"], body["model"]) == ("text_completion", "tiny")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["a", "b"], [[BOS, 97], [BOS, 98]]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
async def test_every_form_of_prompt_reaches_the_engine_as_ids(api, prompt, expected):
    response = await api.complete(prompt=prompt)
    assert response.status_code == 200
    assert [seen[0]["prompt_token_ids"] for seen in api.engine.seen] == expected
    assert [c["index"] for c in response.json()["choices"]] == list(range(len(expected)))


@pytest.mark.parametrize("value", [True, None, False])
async def test_add_special_tokens_is_honoured(api, value):
    response = await api.complete(prompt="<s>a", add_special_tokens=value)
    begins = api.engine.seen[0][0]["prompt_token_ids"][0] == BOS
    assert begins is (value is not False)
    assert response.json()["usage"]["prompt_tokens"] == 4 + begins


@pytest.mark.parametrize(
    "prompt",
    [[], "", [""], [[]], [-1], [[1], [2, "a"]], [1, "a"], [1.5], {"a": 1}, 3, None, [True]],
)
async def test_malformed_prompts_are_refused_by_name(api, prompt):
    response = await api.complete(prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert not api.engine.seen


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 3, 5])
async def test_stream_equals_whole_answer_for_every_cut(make_api, cut, echo):
    text = "A \U0001f600 e\u0301 \u6f22 z"
    steps = [
        Step(
            text[i : i + cut],
            [ord(c) for c in text[i : i + cut]],
            [row(ord(c), c) for c in text[i : i + cut]],
        )
        for i in range(0, len(text), cut)
    ]
    api = make_api(ScriptedEngine([Script(steps, "length")]))
    fields = {"echo": echo, "logprobs": 1}
    whole = (await api.complete(**fields)).json()
    stream = await api.stream(**fields, stream_options={"include_usage": True})
    assert stream.is_done
    assert stream.text() == whole["choices"][0]["text"] == ("ab" if echo else "") + text
    assert stream.chunks[-1]["usage"] == whole["usage"]
    assert [c["finish_reason"] for c in stream.choices()][-1] == "length"
    joined = {key: [] for key in ("tokens", "text_offset", "token_logprobs", "top_logprobs")}
    for choice in stream.choices():
        for key, values in joined.items():
            values += choice["logprobs"][key]
    assert joined == whole["choices"][0]["logprobs"]


async def test_offsets_point_at_their_tokens_with_echo_stream_and_logprobs(make_api):
    stream = await make_api().stream(prompt="ab c", echo=True, logprobs=1)
    text = stream.text()
    entries = [c["logprobs"] for c in stream.choices()]
    tokens = [t for e in entries for t in e["tokens"]]
    offsets = [o for e in entries for o in e["text_offset"]]
    logprobs = [p for e in entries for p in e["token_logprobs"]]
    assert tokens[0] == "<s>" and logprobs[0] is None and offsets[0] == 0
    for token, offset in list(zip(tokens, offsets, strict=True))[1:]:
        assert text[offset : offset + len(token)] == token
    assert text == "ab chello"


async def test_skipped_special_tokens_take_no_room_in_the_offsets(make_api):
    steps = [Step("a", [97], [row(97, "a")]), Step("", [BOS], [row(BOS, "<s>")])]
    steps.append(Step("b", [98], [row(98, "b")]))
    api = make_api(ScriptedEngine([Script(steps)]))
    logprobs = (await api.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 1]


async def test_infinite_logprobs_are_clamped(api):
    response = await api.complete(logprobs=1)
    assert "Infinity" not in response.text and "NaN" not in response.text
    assert response.json()["choices"][0]["logprobs"]["top_logprobs"][0] == {"h": -0.5, "?": -9999.0}


async def test_prompt_logprobs_come_by_token_id(api):
    choice = (await api.complete(prompt_logprobs=1)).json()["choices"][0]
    first, second = choice["prompt_logprobs"][:2]
    assert first is None
    assert second["97"] == {"logprob": -0.5, "rank": 1, "decoded_token": "a"}


@pytest.mark.parametrize(
    ("options", "has_usage_key", "num_usage"),
    [
        (None, False, 0),
        ({}, False, 0),
        ({"include_usage": False}, False, 0),
        ({"include_usage": True}, True, 1),
        ({"include_usage": True, "continuous_usage_stats": True}, True, 6),
    ],
)
async def test_usage_in_streams_comes_as_asked(api, options, has_usage_key, num_usage):
    stream = await api.stream(stream_options=options)
    assert all(("usage" in chunk) is has_usage_key for chunk in stream.chunks)
    assert sum(bool(chunk.get("usage")) for chunk in stream.chunks) == num_usage
    if num_usage:
        assert stream.chunks[-1]["choices"] == []
        assert all(chunk["choices"] for chunk in stream.chunks[:-1])


async def test_stream_options_need_a_stream(api):
    response = await api.complete(stream_options={"include_usage": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stream_options")


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_empty_output_is_an_answer(make_api, n, stream):
    api = make_api(ScriptedEngine([Script([Step("", [BOS])])]))
    if stream:
        got = await api.stream(n=n)
        finished = [got.choices(i)[-1] for i in range(n)]
        assert got.is_done
    else:
        finished = (await api.complete(n=n)).json()["choices"]
    assert [(c["text"], c["finish_reason"]) for c in finished] == [("", "stop")] * n


@pytest.mark.parametrize("n", [2, 4, 8])
async def test_n_choices_of_different_length_each_come_whole(make_api, n):
    scripts = [say("x" * (1 + 3 * i % 7)) for i in range(n)]
    api = make_api(ScriptedEngine(scripts))
    prompts = ["a", "bc"]
    whole = (await api.complete(prompt=prompts, n=n)).json()
    stream = await api.stream(prompt=prompts, n=n, stream_options={"include_usage": True})
    assert [c["index"] for c in whole["choices"]] == list(range(2 * n))
    for index in range(2 * n):
        assert stream.text(index) == whole["choices"][index]["text"]
        assert [c["finish_reason"] for c in stream.choices(index) if c["finish_reason"]] == ["stop"]
    assert stream.chunks[-1]["usage"] == whole["usage"]
    assert whole["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [({}, 16), ({"max_tokens": None}, 16), ({"max_tokens": 40}, 40), ({"prompt": "x" * 60}, 3)],
)
async def test_max_tokens_default_yields_to_the_room_that_is_left(api, fields, max_tokens):
    assert (await api.complete(**fields)).status_code == 200
    assert api.engine.seen[0][1].max_tokens == max_tokens


@pytest.mark.parametrize(
    ("fields", "max_tokens"), [({}, 9), ({"max_tokens": 4}, 4), ({"prompt": "x" * 60}, 3)]
)
async def test_max_tokens_default_may_be_the_models(make_api, fields, max_tokens):
    engine = ScriptedEngine(generation_defaults={"max_tokens": 9})
    assert (await make_api(engine).complete(**fields)).status_code == 200
    assert engine.seen[0][1].max_tokens == max_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_is_judged_as_a_whole_before_any_of_it_runs(make_api, stream):
    api = make_api(ScriptedEngine(room=4))
    response = await api.complete(prompt=["a", "b", "c"], n=2, stream=stream)
    assert response.status_code == 400 and not api.engine.seen
    assert (await api.complete(prompt=["a", "b"], n=2, stream=stream)).status_code == 200


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
async def test_a_prompt_that_begins_with_the_begin_token_gets_no_second(api, path):
    response = await api.post(path, {"prompt": "\0ab"})
    if path == "/tokenize":
        assert response.json()["tokens"] == [BOS, 97, 98]
    else:
        assert api.engine.seen[0][0]["prompt_token_ids"] == [BOS, 97, 98]


async def test_model_defaults_apply_only_where_the_request_is_silent(make_api):
    engine = ScriptedEngine(generation_defaults={"top_k": 1, "repetition_penalty": 1.5})
    api = make_api(engine)
    await api.complete(temperature=10.0)
    await api.complete(top_k=-1, repetition_penalty=1.0)
    first, second = (params for _, params, _ in engine.seen)
    assert (first.temperature, first.top_k, first.repetition_penalty) == (10.0, 1, 1.5)
    assert (second.top_k, second.repetition_penalty) == (0, 1.0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EngineOverloadedError("the queue holds 4 requests, its limit", retry_after_s=7), 503),
        (EngineDeadError("gone: /secret/path"), 503),
        (RequestFailedError("the model gave no finite logits"), 500),
        (RuntimeError("at 0x7f001122 in /secret/path"), 500),
    ],
)
async def test_errors_before_the_first_token_are_statuses(make_api, error, status, stream):
    api = make_api(ScriptedEngine(error=error))
    response = await api.complete(stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["code"] == status
    assert "secret" not in response.text and "0x" not in response.text
    if isinstance(error, EngineOverloadedError):
        assert response.headers["retry-after"] == "7"
        assert (
            api.stats.registry.get_sample_value(
                "vllm:num_requests_refused_total", {"model_name": "tiny", "engine": "0"}
            )
            == 1
        )
    assert not api.engine.active


async def test_an_error_amid_a_stream_is_an_event_and_the_end(make_api):
    engine = ScriptedEngine(late_error=RequestFailedError("the model gave no finite logits"))
    stream = await make_api(engine).stream()
    assert stream.status == 200 and not stream.is_done
    assert stream.chunks[-1]["error"]["message"] == "the model gave no finite logits"
    assert not engine.active


async def test_a_failed_prompt_ends_its_neighbours_of_the_same_request(make_api):
    engine = ScriptedEngine()
    response = await make_api(engine).complete(prompt=[[1], [2] * 64])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    assert not engine.active


async def test_finish_reason_error_is_an_error(make_api):
    api = make_api(ScriptedEngine([Script([Step("")], "error")]))
    assert (await api.complete()).status_code == 500


async def test_equal_client_request_ids_do_not_collide(make_api):
    import asyncio

    api = make_api(ScriptedEngine(step_s=0.01))
    headers = {"X-Request-Id": "same"}
    body = {"prompt": "ab"}
    answers = await asyncio.gather(
        *(api.post("/v1/completions", body, headers=headers) for _ in range(3))
    )
    assert [a.status_code for a in answers] == [200] * 3
    assert {a.json()["id"] for a in answers} == {"cmpl-same"}
    assert {a.headers["x-request-id"] for a in answers} == {"same"}


async def test_chunks_are_valid_json_of_the_right_kind(api):
    stream = await api.stream()
    assert {c["object"] for c in stream.chunks} == {"text_completion"}
    assert len({c["id"] for c in stream.chunks}) == 1
    json.dumps(stream.chunks, allow_nan=False)
