# SPDX-License-Identifier: Apache-2.0
"""The load generator against a server over a scripted engine."""

import json

import pytest

from tests.entrypoints.openai.scripted_engine import ScriptedEngine, say
from tests.entrypoints.serve.conftest import running
from vllm.benchmarks import load, serve
from vllm.entrypoints.cli.parser import VllmArgumentParser
from vllm.exceptions import ConfigError, RequestFailedError

pytestmark = pytest.mark.asyncio


def options(pool, **changes):
    fields = {"num_requests": 6, "input_len": 8, "output_len": 5, "max_concurrency": 2}
    return load.LoadOptions(model="tiny", token_pool=pool, **{**fields, **changes})


async def test_each_answer_is_timed_and_its_tokens_are_counted():
    async with running(ScriptedEngine(step_s=0.01)) as up, up.client() as client:
        pool = await load.get_token_pool(client, "tiny")
        results = await load.generate_load(client, options(pool))
    assert [r.error for r in results] == [None] * 6
    assert all(r.num_output_tokens == 5 and len(r.gaps_s) == 4 for r in results)
    assert all(0 < r.ttft_s < r.total_s for r in results)
    prompts = [seen[0]["prompt_token_ids"] for seen in up.engine.seen]
    assert all(len(p) == 8 and set(p) <= set(pool) for p in prompts)


async def test_equal_seeds_give_equal_prompts():
    async with running(ScriptedEngine()) as up, up.client() as client:
        for seed in (1, 1, 2):
            await load.generate_load(client, options([5, 6, 7], num_requests=1, seed=seed))
    first, again, other = (seen[0]["prompt_token_ids"] for seen in up.engine.seen)
    assert first == again != other


@pytest.mark.parametrize("field", ["error", "late_error"])
async def test_failures_are_results_not_exceptions(field):
    engine = ScriptedEngine(**{field: RequestFailedError("no finite logits")})
    async with running(engine) as up, up.client() as client:
        results = await load.generate_load(client, options([5], num_requests=2))
    assert all("no finite logits" in r.error for r in results)


async def test_bench_serve_prints_a_record(capsys):
    async with running(ScriptedEngine([say("hello")])) as up:
        parser = VllmArgumentParser("vllm bench serve", "")
        serve.add_arguments(parser)
        args = parser.parse_args([f"--base-url={up.url}", "--num-prompts=4"])
        args.random_input_len = 8
        elapsed_s, results = await serve._measure(args)
    record = serve._record(args, elapsed_s, results)
    assert (record["num_prompts"], record["num_failed"]) == (4, 0)
    assert {"mean", "std", "p50", "p90", "p99"} == set(record["ttft_ms"])
    json.dumps(record, allow_nan=False)


async def test_a_server_that_is_not_there_is_one_sentence():
    parser = VllmArgumentParser("vllm bench serve", "")
    serve.add_arguments(parser)
    args = parser.parse_args(["--base-url=http://127.0.0.1:9"])
    with pytest.raises(ConfigError, match="did not answer"):
        await serve._measure(args)
