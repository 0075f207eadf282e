# SPDX-License-Identifier: Apache-2.0
"""A real server process on a tiny model, driven by the OpenAI client."""

import asyncio
import json
import signal
import subprocess
import sys
import time

import httpx
import openai
import psutil
import pytest

from tests.entrypoints.openai.remote_server import KEY, RemoteServer

MESSAGES = [{"role": "user", "content": "the quick brown fox"}]
LONG = {"prompt": "the quick brown fox", "max_tokens": 400, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--max-num-seqs=4", "--max-waiting-requests=8", "--max-logprobs=5")
    with RemoteServer(tiny_model(), log, *options) as up:
        yield up


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def wait_until(condition, timeout_s=1.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def test_models(client):
    assert [m.id for m in client.models.list().data] == ["tiny"]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_completion_streams_what_it_answers(client, temperature):
    fields = {"model": "tiny", "prompt": "a list of", "max_tokens": 24, "seed": 7}
    fields |= {"temperature": temperature, "logprobs": 2}
    whole = client.completions.create(**fields)
    options = {"include_usage": True}
    chunks = list(client.completions.create(**fields, stream=True, stream_options=options))
    choices = [c.choices[0] for c in chunks if c.choices]
    assert "".join(c.text for c in choices) == whole.choices[0].text
    assert choices[-1].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    streamed = [p for c in choices for p in c.logprobs.token_logprobs]
    assert len(streamed) == whole.usage.completion_tokens
    assert streamed == pytest.approx(whole.choices[0].logprobs.token_logprobs, abs=0.1)


def test_echo_offsets_point_at_their_tokens(client):
    fields = {"model": "tiny", "prompt": "one, two, three", "max_tokens": 5}
    choice = client.completions.create(**fields, echo=True, logprobs=1).choices[0]
    assert choice.text.startswith("one, two, three")
    logprobs = choice.logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(p <= 0 for p in logprobs.token_logprobs[1:])
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(logprobs.top_logprobs)


def test_chat_streams_what_it_answers(client):
    fields = {"model": "tiny", "messages": MESSAGES, "max_tokens": 24, "temperature": 0, "n": 2}
    whole = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2)
    texts = ["", ""]
    for chunk in client.chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [c.message.content for c in whole.choices]
    content = whole.choices[0].logprobs.content
    assert all(len(entry.top_logprobs) == 2 for entry in content)


def test_tokenize_chat_and_usage_agree(server, client):
    with server.http() as http:
        shown = http.post("/tokenize", json={"messages": MESSAGES}).json()
        text = http.post("/detokenize", json={"tokens": shown["tokens"]}).json()["prompt"]
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1)
    assert answer.usage.prompt_tokens == shown["count"]
    assert text.count("<s>") == 1


def test_stop_string_ends_the_text_and_is_named(client):
    fields = {"model": "tiny", "prompt": "again and", "max_tokens": 60, "temperature": 0}
    fields["extra_body"] = {"ignore_eos": True}
    full = client.completions.create(**fields).choices[0].text
    stop = full[10:13]
    choice = client.completions.create(**fields, stop=[stop]).choices[0]
    assert choice.text == full[: full.index(stop)]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)


def test_json_schema_constrains_the_answer(client):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=200,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    if answer.choices[0].finish_reason == "stop":
        assert 0 <= json.loads(answer.choices[0].message.content)["n"] <= 9
    else:
        assert answer.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [0, 999_999]}, "prompt"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"prompt": [5] * 500, "max_tokens": 100}, "max_tokens"),
        ({"logit_bias": {"999999": 5}}, "logit_bias"),
        ({"logprobs": 100}, "logprobs"),
        ({"extra_body": {"allowed_token_ids": [999_999]}}, "allowed_token_ids"),
        ({"extra_body": {"stop_token_ids": [999_999]}}, "stop_token_ids"),
        ({"extra_body": {"structured_outputs": {"regex": "foo**("}}}, None),
        ({"extra_body": {"structured_outputs": {"json": {"type": "nope"}}}}, None),
        ({"extra_body": {"structured_outputs": {"grammar": "root ::="}}}, None),
    ],
)
def test_what_the_model_cannot_take_is_refused_and_the_engine_lives(client, fields, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{"model": "tiny", "prompt": "a", **fields})
    assert param in (None, refused.value.param)
    assert client.completions.create(model="tiny", prompt="a", max_tokens=1).choices


def test_wrong_key_and_wrong_model_are_told(server, client):
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key=KEY + "x").models.list()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_a_client_that_leaves_frees_its_blocks(server, stream, n):
    body = {"prompt": "the quick", "max_tokens": 480, "ignore_eos": True, "n": n}
    with server.http() as http:
        if stream:
            with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post("/v1/completions", json=body, timeout=0.3)
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    wait_until(lambda: all(server.metric(name) == 0 for name in names), 1.5)


async def _attempt(client):
    try:
        stream = await client.completions.create(model="tiny", stream=True, **LONG)
        return len([chunk async for chunk in stream])
    except openai.APIStatusError as error:
        return error


async def _attempt_all(server, count):
    async with openai.AsyncOpenAI(
        base_url=server.url + "/v1", api_key=KEY, max_retries=0
    ) as client:
        return await asyncio.gather(*(_attempt(client) for _ in range(count)))


def test_overload_is_told_at_once_and_the_others_finish(server):
    results = asyncio.run(_attempt_all(server, 50))
    refusals = [r for r in results if not isinstance(r, int)]
    lengths = [r for r in results if isinstance(r, int)]
    assert refusals and all(e.status_code == 503 for e in refusals)
    assert all("retry-after" in e.response.headers for e in refusals)
    assert len(lengths) >= 12 and all(lengths)
    assert server.metric("num_requests_refused_total") == len(refusals)


def test_chat_and_complete_commands_talk_to_the_server(server):
    for command in ("chat", "complete"):
        argv = [sys.executable, "-m", "vllm.entrypoints.cli.main", command]
        argv += ["-q", "the lazy dog", f"--url={server.url}", f"--api-key={KEY}"]
        argv += ["--max-tokens=4", "--temperature=0"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("\n")


def test_sigterm_lets_requests_finish_and_leaves_nothing(tiny_model, tmp_path):
    with RemoteServer(tiny_model(), tmp_path / "log") as server:
        engine = server.engine_process
        with server.client() as client:
            stream = client.completions.create(model="tiny", stream=True, **LONG)
            next(stream)
            server.process.send_signal(signal.SIGTERM)
            assert sum(1 for _ in stream) > 1
        assert server.process.wait(20) == 0
        wait_until(lambda: not engine.is_running(), 5)


def test_a_killed_engine_turns_health_red_and_ends_the_server(tiny_model, tmp_path):
    with RemoteServer(tiny_model(), tmp_path / "log") as server:
        with server.client() as client:
            stream = client.completions.create(model="tiny", stream=True, **LONG)
            next(stream)
            server.engine_process.kill()
            with pytest.raises(openai.APIError):
                list(stream)
        assert server.health() in (503, None)
        assert server.process.wait(20) == 1


def test_a_killed_server_takes_its_engine_along(tiny_model, tmp_path):
    with RemoteServer(tiny_model(), tmp_path / "log") as server:
        engine = server.engine_process
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE, 5)
