# SPDX-License-Identifier: Apache-2.0
"""What a wrong request gets: 400 with the field's name, and the engine never sees it."""

import pytest

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -7}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 10**9}, "n"),
        ({"n": 0}, "n"),
        ({"n": "2"}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"seed": 2**70}, "seed"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"1": 1e9}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [3]}, "bad_words"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"guided_json": {}}, "guided_json"),
        ({"chat_template": "x"}, "chat_template"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options"),
        ({"stream_options": {"other": True}, "stream": True}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -2}, "logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"prompt": ["x"] * 2000}, "prompt"),
        ({"prompt": ["x"] * 100, "n": 64}, "n"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
async def test_wrong_field_is_named(api, fields, param):
    response = await api.complete(**fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["type"] == "BadRequestError" and param.split(".")[0] in error["message"]
    assert not api.engine.seen


@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_not_finite_are_refused(api, field, value):
    text = f'{{"prompt": "a", "{field}": {value}}}'
    response = await api.request(
        "POST", "/v1/completions", content=text, headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        '"x"',
        "\xff",
        '{"prompt": ' + "[" * 100_000,
        '{"n":' + "1" * 9999 + "}",
    ],
)
async def test_what_is_no_json_object_is_refused(api, text):
    response = await api.request(
        "POST",
        "/v1/completions",
        content=text.encode("latin-1"),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize(
    ("text", "param", "words"),
    [
        ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", "seed", "seed: an integer of 5000 digits"),
        ('{"logit_bias": {"3": -' + "9" * 4301 + "}}", "logit_bias", "logit_bias.3"),
        ('{"prompt": ' + "[" * 200_000 + "]" * 200_000 + "}", None, "more than 100 levels"),
        ('{"seed": ' + "9" * 5000 + ', "prompt": ' + "[" * 200_000, None, "more than 100 levels"),
        ('{"seed": ' + "9" * 5000 + ', "prompt"', None, "is not JSON"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
async def test_what_stops_the_json_library_is_named(api, path, text, param, words):
    headers = {"content-type": "application/json"}
    response = await api.request("POST", path, content=text, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert words in error["message"]


async def test_text_that_is_no_unicode_is_refused(api):
    for text in (r'{"prompt": "\ud800"}', r'{"prompt": "a", "stop": ["\udfff"]}'):
        response = await api.request(
            "POST", "/v1/completions", content=text, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
        assert "surrogate" in response.json()["error"]["message"]
    headers = {"content-type": "application/json"}
    response = await api.request(
        "POST", "/v1/completions", content=b'{"prompt": "\xff"}', headers=headers
    )
    assert response.status_code == 400 and "byte 12" in response.json()["error"]["message"]


@pytest.mark.parametrize("field", ["structured_outputs", "metadata", "prompt"])
async def test_deep_nesting_is_refused(api, field):
    value = {"a": "x"}
    for _ in range(200):
        value = {"a": value}
    response = await api.complete(**{field: value})
    assert response.status_code == 400 and "nested" in response.json()["error"]["message"]


async def test_neutral_values_of_unsupported_fields_pass(api):
    fields = dict.fromkeys(("suffix", "best_of", "user", "seed", "stop", "logit_bias", "logprobs"))
    assert (await api.complete(**fields, metadata={"a": "b"}, store=True)).status_code == 200


async def test_every_sampling_field_reaches_the_engine(api):
    fields = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.1,
        "seed": 3,
        "stop": ["z"],
        "stop_token_ids": [9],
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "allowed_token_ids": [1, 2],
        "bad_words": ["bad"],
        "min_tokens": 2,
        "max_tokens": 5,
        "logprobs": 3,
        "prompt_logprobs": 2,
    }
    more = {"logit_bias": {"5": 1}, "priority": 4, "cache_salt": "s"}
    choice = {"structured_outputs": {"choice": ["a", "b"]}}
    response = await api.complete(**fields, **more, **choice)
    assert response.status_code == 200, response.text
    prompt, params, priority = api.engine.seen[0]
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.logit_bias, priority, prompt["cache_salt"]) == ({5: 1.0}, 4, "s")
    assert params.structured_outputs.choice == ["a", "b"]


@pytest.mark.parametrize(
    ("response_format", "json", "json_object"),
    [
        ({"type": "text"}, None, None),
        ({"type": "json_object"}, None, True),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            {"type": "object"},
            None,
        ),
    ],
)
async def test_response_format_becomes_a_grammar(api, response_format, json, json_object):
    assert (await api.complete(response_format=response_format)).status_code == 200
    wanted = api.engine.seen[0][1].structured_outputs
    assert (wanted and wanted.json, wanted and wanted.json_object) == (json, json_object)


async def test_unknown_model_is_404(api):
    response = await api.complete(model="other")
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (404, "model", "NotFoundError")
    assert "tiny" in error["message"]


async def test_unknown_path_and_method_answer_in_the_same_shape(api):
    for path in ("/v1/nothing", "/sleep", "/collective_rpc", "/docs", "/openapi.json"):
        response = await api.request("GET", path)
        assert response.status_code == 404 and response.json()["error"]["type"] == "NotFoundError"
    assert (await api.request("GET", "/v1/completions")).status_code == 405


async def test_models_are_listed_and_retrieved(api):
    listed = (await api.request("GET", "/v1/models")).json()
    assert [card["id"] for card in listed["data"]] == ["tiny", "alias"]
    assert listed["data"][0]["max_model_len"] == 64
    assert (await api.request("GET", "/v1/models/alias")).json()["id"] == "alias"
    assert (await api.request("GET", "/v1/models/x/y")).status_code == 404
