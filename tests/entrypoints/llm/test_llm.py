# SPDX-License-Identifier: Apache-2.0
"""`LLM` on a tiny model, against Transformers and against itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TinyModel
from tests.utils import hf_logprobs, random_token_ids
from vllm import LLM, SamplingParams
from vllm.exceptions import ConfigError, VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.attention.backends.torch_ref import TorchRefBackend

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="module")
def path(tiny_model: TinyModel) -> Path:
    return tiny_model()


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(
        str(path),
        dtype="float32",
        kv_cache_memory_bytes="8M",
        max_model_len=128,
        max_num_batched_tokens=32,
        max_logprobs=-1,
    )


def is_idle(llm: LLM) -> bool:
    core = llm.llm_engine.engine_core.engine_core
    while core.has_requests():
        core.step()
    core.scheduler.check_integrity()
    return core.get_request_counts() == (0, 0)


def test_greedy_tokens_and_logprobs_are_those_of_transformers(llm: LLM, path: Path) -> None:
    prompts = [random_token_ids(n, seed=n) for n in (1, 15, 16, 17, 40, 90)]
    for prompt, output in zip(prompts, llm.generate(prompts, GREEDY, use_tqdm=False), strict=True):
        completion = output.outputs[0]
        assert output.prompt_token_ids == prompt
        reference = hf_logprobs(path, [*prompt, *completion.token_ids])
        assert completion.logprobs is not None
        for i, token_id in enumerate(completion.token_ids):
            row = reference[len(prompt) + i - 1]
            position = completion.logprobs[i]
            assert row.argmax() == token_id
            for other, logprob in position.items():
                assert abs(float(row[other]) - logprob.logprob) < 1e-4
            assert position[token_id].rank == 1
        assert completion.cumulative_logprob == pytest.approx(
            sum(
                p[t].logprob for p, t in zip(completion.logprobs, completion.token_ids, strict=True)
            )
        )
    assert is_idle(llm)


def test_prompt_logprobs_are_those_of_transformers(llm: LLM, path: Path) -> None:
    prompt = random_token_ids(50, seed=3)
    params = SamplingParams(max_tokens=1, prompt_logprobs=2, temperature=0.0)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    rows = output.prompt_logprobs
    assert rows is not None
    assert rows[0] is None
    assert len(rows) == len(prompt)
    reference = hf_logprobs(path, prompt)
    for i in range(1, len(prompt)):
        row = rows[i]
        assert row is not None
        assert abs(float(reference[i - 1, prompt[i]]) - row[prompt[i]].logprob) < 1e-4


def test_a_second_run_hits_the_prefix_cache_and_says_the_same(llm: LLM) -> None:
    prompt = random_token_ids(70, seed=11)
    llm.reset_prefix_cache()
    (first,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    (second,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 64)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert llm.reset_prefix_cache()
    assert llm.generate([prompt], GREEDY, use_tqdm=False)[0].num_cached_tokens == 0


@pytest.mark.parametrize("block_size", [1, 3, 24])
def test_a_block_size_that_the_backend_takes_changes_nothing(
    llm: LLM, path: Path, block_size: int
) -> None:
    prompts = [random_token_ids(n, seed=n) for n in (1, 2, 3, 24, 25, 72)]
    expected = [o.outputs[0] for o in llm.generate(prompts, GREEDY, use_tqdm=False)]
    other = LLM(
        str(path), dtype="float32", kv_cache_memory_bytes="8M", max_model_len=128,
        max_num_batched_tokens=32, block_size=block_size,
    )  # fmt: skip
    for hits in ([0] * 6, [(len(prompt) - 1) // block_size * block_size for prompt in prompts]):
        told = other.generate(prompts, GREEDY, use_tqdm=False)
        assert [o.num_cached_tokens for o in told] == hits
        for want, output in zip(expected, told, strict=True):
            assert output.outputs[0].token_ids == want.token_ids
            assert output.outputs[0].cumulative_logprob == pytest.approx(
                want.cumulative_logprob, abs=1e-3
            )
    assert is_idle(other)


def test_a_block_size_that_the_backend_does_not_take_is_refused_before_weights_are_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = classmethod(lambda cls: [16, 32])
    monkeypatch.setattr(TorchRefBackend, "get_supported_kernel_block_sizes", sizes)
    damaged = tmp_path / "model"
    shutil.copytree(path, damaged)
    (weights,) = damaged.glob("*.safetensors")
    os.truncate(weights, weights.stat().st_size - 1)
    with pytest.raises(ConfigError, match=r"block_size 3 \(multiples of \[16, 32\]\)"):
        LLM(str(damaged), kv_cache_memory_bytes="2M", max_model_len=64, block_size=3)
    for wrong in (0, -16, 2.5, True):
        with pytest.raises(ConfigError, match="block_size"):
            LLM(str(path), kv_cache_memory_bytes="2M", max_model_len=64, block_size=wrong)
    with pytest.raises(ConfigError, match=r"max_model_len=64 needs"):
        LLM(str(path), kv_cache_memory_bytes="2M", max_model_len=64, block_size=2**30)


def test_order_forms_and_parameters_per_prompt(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("the dog")
    prompts = ["the dog", {"prompt": "the dog"}, {"prompt_token_ids": ids}, ids]
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 9, 5, 2)]
    told = llm.generate(prompts, params, use_tqdm=False)
    assert [len(o.outputs[0].token_ids) for o in told] == [1, 9, 5, 2]
    assert all(o.prompt_token_ids == ids for o in told)
    assert [o.prompt for o in told] == ["the dog", "the dog", None, None]
    assert len(llm.generate("the dog", use_tqdm=False)) == 1
    assert llm.generate([], use_tqdm=False) == []
    with pytest.raises(VLLMValidationError, match="2 entries for 4"):
        llm.generate(prompts, params[:2], use_tqdm=False)


def test_text_is_the_decoded_continuation(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=40, ignore_eos=True)
    for output in llm.generate(["the quick", "a list of"], params, use_tqdm=False):
        whole = [*(output.prompt_token_ids or ()), *output.outputs[0].token_ids]
        prompt_text = tokenizer.decode(output.prompt_token_ids, skip_special_tokens=True)
        assert prompt_text + output.outputs[0].text == tokenizer.decode(
            whole, skip_special_tokens=True
        )


def test_stop_strings_and_stop_tokens(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=40, ignore_eos=True)
    (free,) = llm.generate(["the quick"], params, use_tqdm=False)
    text, ids = free.outputs[0].text, free.outputs[0].token_ids
    stop = text[10:14]
    params.stop = [stop]
    (stopped,) = llm.generate(["the quick"], params, use_tqdm=False)
    completion = stopped.outputs[0]
    assert completion.text == text[: text.index(stop)]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    params.stop, params.stop_token_ids = [], [ids[6]]
    (stopped,) = llm.generate(["the quick"], params, use_tqdm=False)
    end = ids.index(ids[6])
    assert stopped.outputs[0].token_ids == ids[: end + 1]
    assert stopped.outputs[0].stop_reason == ids[6]
    assert is_idle(llm)


def test_seeds_reproduce_whatever_else_is_in_the_batch(llm: LLM) -> None:
    seeded = SamplingParams(temperature=1.0, seed=9, max_tokens=20, n=4, ignore_eos=True)
    other = SamplingParams(temperature=1.3, max_tokens=33)
    (alone,) = llm.generate(["the fox"], seeded, use_tqdm=False)
    among = llm.generate(["a", "the fox", "next token"], [other, seeded, other], use_tqdm=False)[1]
    assert [c.index for c in alone.outputs] == [0, 1, 2, 3]
    assert [c.token_ids for c in alone.outputs] == [c.token_ids for c in among.outputs]
    assert len({tuple(c.token_ids) for c in alone.outputs}) == 4
    free = [llm.generate("the fox", other, use_tqdm=False)[0] for _ in range(2)]
    assert free[0].outputs[0].token_ids != free[1].outputs[0].token_ids


def test_one_wrong_prompt_stops_the_list_before_anything_runs(llm: LLM) -> None:
    for wrong in ([999_999], [], {"image": 1}, random_token_ids(128)):
        with pytest.raises(VLLMValidationError):
            llm.generate(["the dog", wrong], GREEDY, use_tqdm=False)
        assert not llm.llm_engine.has_unfinished_requests()
    with pytest.raises(VLLMValidationError, match="adapters"):
        llm.generate("x", lora_request=LoRARequest("a", 1))
    assert is_idle(llm)


def test_an_interrupt_leaves_the_engine_usable(llm: LLM, monkeypatch: Any) -> None:
    engine = llm.llm_engine
    step, calls = engine.step, 0

    def interrupted() -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["the dog", "a list"], GREEDY, use_tqdm=False)
    assert not engine.has_unfinished_requests()
    assert is_idle(llm)
    assert len(llm.generate("the dog", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 12


def test_max_tokens_is_an_upper_bound(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True)
    (output,) = llm.generate([random_token_ids(120)], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 8
    assert output.outputs[0].finish_reason == "length"


def test_chat_equals_generate_on_the_rendered_text(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the quick"}]
    (chat,) = llm.chat(messages, GREEDY, use_tqdm=False)
    text = llm.get_tokenizer().apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    (generated,) = llm.generate(text, GREEDY, use_tqdm=False)
    assert chat.prompt_token_ids == generated.prompt_token_ids
    assert chat.outputs[0].token_ids == generated.outputs[0].token_ids
    both = llm.chat([messages, messages], GREEDY, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in both] == [chat.outputs[0].token_ids] * 2
    with pytest.raises(TypeError, match="unheard_of"):
        llm.chat(messages, GREEDY, unheard_of=1)


def test_the_progress_bar_counts_prompts_and_tokens(llm: LLM, capsys: Any) -> None:
    llm.generate(["the dog", "a list"], GREEDY)
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "tokens/s" in shown
    llm.generate(["the dog"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_reaching_the_model(llm: LLM) -> None:
    (num_parameters,) = llm.apply_model(lambda m: sum(p.numel() for p in m.parameters()))
    runner = llm.llm_engine.model_executor.driver_worker.model_runner  # type: ignore[attr-defined]
    assert num_parameters == sum(p.numel() for p in runner.model.parameters())
    assert llm.collective_rpc("check_health") == [None]
    assert llm.collective_rpc(lambda worker: type(worker).__name__) == ["Worker"]


def test_metrics_count_what_ran(llm: LLM) -> None:
    def generated() -> float:
        return next(m.value for m in llm.get_metrics() if m.name == "vllm:generation_tokens")  # type: ignore[attr-defined]

    before = generated()
    llm.generate(["the dog"], GREEDY, use_tqdm=False)
    assert generated() - before == 12


def test_the_engine_can_be_stepped_by_hand(llm: LLM) -> None:
    engine = llm.llm_engine
    params = SamplingParams(
        temperature=0.0, max_tokens=6, ignore_eos=True, output_kind=RequestOutputKind.DELTA
    )
    engine.add_request("one", "the dog", params)
    engine.add_request("two", {"prompt_token_ids": [7, 8]}, params)
    engine.abort_request("two")
    text: dict[str, int] = {}
    reasons: dict[str, str | None] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            text[output.request_id] = text.get(output.request_id, 0) + len(
                output.outputs[0].token_ids
            )
            reasons[output.request_id] = output.outputs[0].finish_reason
    assert (text, reasons) == ({"one": 6, "two": 0}, {"one": "length", "two": "abort"})


def test_requests_of_the_callers_own_do_not_mix_with_generate(llm: LLM) -> None:
    engine = llm.llm_engine
    own = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    for request_id in ("x", "0", "1"):
        engine.add_request(request_id, "the dog", own)
    (told,) = llm.generate(["a list"], GREEDY, use_tqdm=False)
    assert told.finished
    assert len(told.outputs[0].token_ids) == 12
    seen = engine.step()
    assert {o.request_id for o in seen if o.finished} == {"x", "0", "1"}
    assert not engine.has_unfinished_requests()


def test_model_defaults(tiny_model: TinyModel) -> None:
    override = {"temperature": 0.3, "top_k": 4}
    llm = LLM(
        str(tiny_model()),
        dtype="float32",
        kv_cache_memory_bytes="2M",
        max_model_len=64,
        override_generation_config=override,
        disable_log_stats=True,
    )
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k) == (0.3, 4)
    with pytest.raises(RuntimeError, match="statistics are off"):
        llm.get_metrics()


def test_arguments_that_cannot_be_served_stop_the_start(path: Path) -> None:
    with pytest.raises(ConfigError, match="enable_lora"):
        LLM(str(path), enable_lora=True)
    for name in ("max_waiting_requests", "max_waiting_tokens"):
        with pytest.raises(ConfigError, match=f"{name}=1: only the server"):
            LLM(str(path), max_model_len=64, kv_cache_memory_bytes="2M", **{name: 1})
    with pytest.raises(TypeError, match="max_model_len"):
        LLM(str(path), max_modl_len=5)


def test_import_is_light_and_a_script_needs_no_guard(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, vllm\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "assert vllm.__version__.startswith('0.32.0+')\n"
        f"llm = vllm.LLM({str(path)!r}, kv_cache_memory_bytes='2M', max_model_len=64)\n"
        "print(len(llm.generate('the dog', use_tqdm=False)))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_default_dtype_runs(path: Path) -> None:
    llm = LLM(str(path), kv_cache_memory_bytes="2M", max_model_len=64)
    assert llm.llm_engine.model_config.dtype is torch.bfloat16
    assert len(llm.generate("the dog", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 12
