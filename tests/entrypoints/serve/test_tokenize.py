# SPDX-License-Identifier: Apache-2.0
"""/tokenize and /detokenize show the ids that the engine uses; /version tells the version."""

import httpx
import pytest

from tests.entrypoints.openai.scripted_engine import BOS, VOCAB_SIZE, ScriptedEngine
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.version import __version__

pytestmark = pytest.mark.asyncio


async def call(path, body=None, engine=None):
    app = build_app(FrontendArgs(), engine or ScriptedEngine())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await (client.get(path) if body is None else client.post(path, json=body))


@pytest.mark.parametrize("special", [True, False, None])
async def test_text_gives_ids_and_strings(special):
    body = {"prompt": "ab", "add_special_tokens": special, "return_token_strs": True}
    answer = (await call("/tokenize", body)).json()
    ids = ([] if special is False else [BOS]) + [97, 98]
    strs = ([] if special is False else ["<s>"]) + ["a", "b"]
    assert answer == {"count": len(ids), "max_model_len": 64, "tokens": ids, "token_strs": strs}


async def test_long_text_is_tokenized_too():
    assert (await call("/tokenize", {"prompt": "a" * 50_000})).json()["count"] == 50_001


async def test_detokenize_is_the_inverse():
    assert (await call("/detokenize", {"tokens": [97, 98]})).json() == {"prompt": "ab"}


@pytest.mark.parametrize("tokens", [[-1], [VOCAB_SIZE], ["a"], [1.5], 3, None])
async def test_detokenize_refuses_what_are_no_ids(tokens):
    response = await call("/detokenize", {"tokens": tokens})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tokens")


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": ""}]}]
)
async def test_tokenize_takes_exactly_one_source(body):
    assert (await call("/tokenize", body)).status_code == 400


async def test_without_a_tokenizer_text_is_refused():
    engine = ScriptedEngine(tokenizer=None)
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert (await call(path, body, engine)).status_code == 400


async def test_version_is_the_packages():
    assert (await call("/version")).json() == {"version": __version__}
