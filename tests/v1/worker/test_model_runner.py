# SPDX-License-Identifier: Apache-2.0
"""Steps of a real tiny model against its dense twin: every split of the work, every neighbour."""

import numpy as np
import pytest
import torch

from tests.v1.worker.tiny import VOCAB, Driver, TinyModel, kv_cache_config, make_vllm_config
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.worker.model_runner import ModelRunner

MIXED = [None, 5, None, 5]
TOLERANCE = 1e-4  # logprobs, fp32 against fp64


def make_runner(windows, *, num_blocks=97, **options):
    config = make_vllm_config(**options)
    model = TinyModel(config, windows)
    runner = ModelRunner(config, model, torch.device("cpu"))
    runner.initialize_kv_cache(kv_cache_config(model, num_blocks))
    for raw in runner._kv_allocations:
        raw.fill_(-1)  # 0xFFFF... is NaN: what was never written must never matter
    return runner, Driver(num_groups=len(set(windows)))


def prompt_of(length, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def greedy(**options):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 100, "seed": 1, **options})


def check_greedy(model, prompt, tokens, logprobs=None):
    """Each of `tokens` is the dense twin's likeliest, after those before it."""
    rows = torch.log_softmax(model.dense_logits([*prompt, *tokens[:-1]]), -1)[len(prompt) - 1 :]
    assert tokens == rows.argmax(-1).tolist()
    if logprobs is not None:
        assert logprobs == pytest.approx(rows.max(-1).values.tolist(), abs=TOLERANCE)


def run(runner, driver, req_id, chunks, num_tokens):
    """Prefill in `chunks`, then decode; sampled tokens and their logprobs."""
    tokens, logprobs = [], []
    for chunk in [*chunks, *[1] * (num_tokens - 1)]:
        result = driver.step(runner, {req_id: chunk})
        assert result.errors == {}
        tokens += result.sampled_token_ids.get(req_id, [])
        if req_id in result.logprobs:
            logprobs += [row[0] for row in result.logprobs[req_id].logprobs]
    return tokens, logprobs


@pytest.mark.parametrize("windows", [[None, None], [5, 5], MIXED])
@pytest.mark.parametrize("chunks", [[30], [16, 14], [1, 5, 4, 12, 8], [1] * 30])
def test_any_chunking_gives_the_dense_models_tokens(windows, chunks):
    runner, driver = make_runner(windows)
    prompt = prompt_of(30)
    driver.start("a", prompt, greedy(logprobs=1))
    tokens, logprobs = run(runner, driver, "a", chunks, 8)
    assert len(tokens) == 8
    check_greedy(runner.model, prompt, tokens, logprobs)


def test_neighbours_that_come_and_go_change_nothing():
    runner, driver = make_runner(MIXED)
    prompts = {name: prompt_of(9 + 4 * i, seed=i) for i, name in enumerate("abcd")}
    for name, prompt in prompts.items():
        driver.start(name, prompt, greedy())
    driver.step(runner, {"a": 9, "b": 6})
    driver.step(runner, {"a": 1, "b": 7, "c": 3})
    driver.step(runner, {"c": 14, "b": 1, "d": 21}, finish=["a"])
    for _ in range(4):
        driver.step(runner, {"d": 1, "b": 1, "c": 1})
    for name, prompt in prompts.items():
        generated = driver.tokens[name][1]
        assert len(generated) == (2 if name == "a" else 5 if name in "cd" else 6)
        check_greedy(runner.model, prompt, generated)
    assert sorted(runner.batch.row_of) == ["b", "c", "d"]


def test_a_preempted_request_resumes_with_what_it_had_generated():
    runner, driver = make_runner(MIXED)
    driver.start("a", prompt_of(11), greedy(prompt_logprobs=2))
    driver.start("b", prompt_of(7, seed=3), greedy())
    first = driver.step(runner, {"a": 11, "b": 7})
    assert "a" in first.prompt_logprobs
    for _ in range(3):
        driver.step(runner, {"a": 1, "b": 1})
    driver.step(runner, {"b": 1}, preempt=["a"])
    assert "a" not in runner.batch.row_of
    resumed = driver.step(runner, {"a": 9, "b": 1})
    assert resumed.sampled_token_ids.keys() == {"b"}
    assert resumed.prompt_logprobs == {}
    driver.step(runner, {"a": 6, "b": 1})
    driver.step(runner, {"a": 1, "b": 1})
    for name, prompt in (("a", prompt_of(11)), ("b", prompt_of(7, seed=3))):
        generated = driver.tokens[name][1]
        assert len(generated) == (6 if name == "a" else 8)
        check_greedy(runner.model, prompt, generated)


@pytest.mark.parametrize("rows_at_once", [None, 3])
def test_prompt_logprobs_over_chunks(rows_at_once):
    runner, driver = make_runner(MIXED)
    if rows_at_once:
        runner._prompt_logprobs._range = rows_at_once
    prompt = prompt_of(20)
    driver.start("a", prompt, greedy(prompt_logprobs=2))
    driver.start("b", prompt_of(5), greedy())
    logprobs, token_ids, ranks = [], [], []
    for chunk, other in ((1, 5), (8, 1), (10, 1), (1, 1), (1, 1)):
        result = driver.step(runner, {"b": other, "a": chunk})
        assert "b" not in result.prompt_logprobs
        part = result.prompt_logprobs.get("a")
        if part is not None:
            logprobs += part.logprobs
            token_ids += part.token_ids
            ranks += part.sampled_ranks
    want = torch.log_softmax(runner.model.dense_logits(prompt), -1)[:-1]
    assert [row[0] for row in token_ids] == prompt[1:]
    own = want[torch.arange(19), torch.tensor(prompt[1:])]
    assert [row[0] for row in logprobs] == pytest.approx(own.tolist(), abs=TOLERANCE)
    assert ranks == ((want > own[:, None]).sum(-1) + 1).tolist()
    top = want.topk(2).values
    assert torch.tensor(logprobs)[:, 1:].double().sub(top).abs().max() < TOLERANCE


def test_a_non_finite_row_ends_its_request_alone():
    runner, driver = make_runner([None])
    runner.model.embed.data[7] = torch.nan
    driver.start("bad", [1, 2, 7], greedy())
    driver.start("good", [1, 2, 3], greedy())
    result = driver.step(runner, {"bad": 3, "good": 3})
    assert result.errors.keys() == {"bad"}
    later = driver.step(runner, {"good": 1}, finish=["bad"])
    assert later.sampled_token_ids.keys() == {"good"} and later.errors == {}
    check_greedy(runner.model, [1, 2, 3], driver.tokens["good"][1])


def test_a_grammars_mask_binds_its_own_request_only():
    runner, driver = make_runner([None])
    prompt = prompt_of(6)
    for name in "ab":
        driver.start(name, prompt, greedy())
    free = int(runner.model.dense_logits(prompt)[-1].argmax())
    allowed = (free + 1) % VOCAB
    bitmask = np.zeros((1, -(-VOCAB // 32)), dtype=np.int32)
    bitmask[0, allowed // 32] = np.array(1 << allowed % 32, dtype=np.int64).astype(np.int32)
    grammar = GrammarOutput(["b"], bitmask)
    result = driver.step(runner, {"a": 6, "b": 6}, grammar=grammar)
    assert result.sampled_token_ids == {"a": [free], "b": [allowed]}


def test_rows_are_reused_and_an_empty_step_is_fine():
    runner, driver = make_runner([None], max_num_seqs=2)
    for round_ in range(3):
        names = [f"{round_}{i}" for i in range(2)]
        for name in names:
            driver.start(name, prompt_of(5, seed=round_), greedy())
        driver.step(runner, dict.fromkeys(names, 5))
        result = driver.step(runner, {}, finish=names)
        assert result.sampled_token_ids == {}
    assert runner.batch.row_of == {}
    runner.execute_model(SchedulerOutput(finished_req_ids={"never seen"}))


def test_a_request_may_fill_the_whole_context():
    runner, driver = make_runner([None], max_model_len=12)
    driver.start("a", prompt_of(10), greedy())
    tokens, _ = run(runner, driver, "a", [10], 3)
    assert len(tokens) == 3
    check_greedy(runner.model, prompt_of(10), tokens)
