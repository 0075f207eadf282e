# SPDX-License-Identifier: Apache-2.0
"""What stands before the routes: keys, sizes, request ids, CORS, docs."""

import pytest

from tests.entrypoints.openai.scripted_engine import ScriptedEngine
from vllm.entrypoints.openai.cli_args import FrontendArgs
from vllm.exceptions import ConfigError

pytestmark = pytest.mark.asyncio

PATHS = [
    ("GET", "/v1/models"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/nothing"),
    ("GET", "//v1/models"),
    ("GET", "/health/"),
    ("GET", "/HEALTH"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer ", "Basic one", "one", "Bearer onetwo", "Bearer \xff"]
)
async def test_every_route_but_health_needs_a_key(make_api, method, path, header):
    api = make_api(api_key=["one", "two"])
    headers = {"authorization": header.encode("latin-1")} if header else {}
    response = await api.request(method, f"http://test{path}", headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "AuthenticationError"


@pytest.mark.parametrize("key", ["one", "two"])
async def test_each_key_opens_and_health_is_open(make_api, key):
    api = make_api(api_key=["one", "two"])
    response = await api.request("GET", "/v1/models", headers={"authorization": f"bearer {key}"})
    assert response.status_code == 200
    assert (await api.request("GET", "/health")).status_code == 200


async def test_the_key_may_come_from_the_environment(make_api, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    api = make_api()
    assert (await api.request("GET", "/v1/models")).status_code == 401
    assert (
        await make_api(api_key=["x"]).request(
            "GET", "/v1/models", headers={"authorization": "Bearer secret"}
        )
    ).status_code == 401


async def test_empty_keys_are_refused_at_start(monkeypatch):
    with pytest.raises(ConfigError, match="empty key"):
        FrontendArgs(api_key=[""])
    monkeypatch.setenv("VLLM_API_KEY", "")
    with pytest.raises(ConfigError, match="empty key"):
        FrontendArgs()


async def test_root_path_does_not_open_routes(make_api):
    api = make_api(api_key=["one"], root_path="/health")
    assert (await api.request("GET", "/health/v1/models")).status_code == 401


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_over_the_limit_get_413(make_api, chunked):
    api = make_api(max_request_body_bytes=1000)

    async def pieces():
        for _ in range(20):
            yield b" " * 100

    content = pieces() if chunked else b" " * 2000
    response = await api.request(
        "POST", "/v1/completions", content=content, headers={"content-type": "application/json"}
    )
    assert response.status_code == 413
    assert "1000 bytes" in response.json()["error"]["message"]
    assert (await api.complete()).status_code == 200


async def test_a_request_id_is_always_answered_and_only_a_sane_one_is_kept(api):
    response = await api.request("GET", "/health", headers={"X-Request-Id": "a-1"})
    assert response.headers["x-request-id"] == "a-1"
    response = await api.request("GET", "/health", headers={"X-Request-Id": "x" * 500})
    assert len(response.headers["x-request-id"]) == 32


async def test_cors_is_off_unless_origins_are_named(make_api):
    headers = {"Origin": "http://a.example"}
    response = await make_api().request("GET", "/health", headers=headers)
    assert "access-control-allow-origin" not in response.headers
    api = make_api(allowed_origins=["http://a.example"], api_key=["k"])
    response = await api.request("GET", "/health", headers=headers)
    assert response.headers["access-control-allow-origin"] == "http://a.example"
    preflight = {**headers, "Access-Control-Request-Method": "POST"}
    response = await api.request("OPTIONS", "/v1/completions", headers=preflight)
    assert response.status_code == 200


async def test_docs_are_served_on_request_only(make_api):
    api = make_api(enable_fastapi_docs=True)
    assert (await api.request("GET", "/openapi.json")).status_code == 200


async def test_health_tells_the_truth(make_api):
    engine = ScriptedEngine()
    api = make_api(engine)
    assert (await api.request("GET", "/health")).status_code == 200
    engine.errored = True
    response = await api.request("GET", "/health")
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "ServiceUnavailableError"


async def test_metrics_of_an_idle_engine_hold_no_nan(api):
    response = await api.request("GET", "/metrics")
    assert response.status_code == 200
    assert "NaN" not in response.text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in response.text


@pytest.mark.parametrize(
    "options",
    [{"port": 70_000}, {"max_request_body_bytes": 0}, {"root_path": "x"}, {"ssl_keyfile": "k"}],
)
async def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError):
        FrontendArgs(**options)
