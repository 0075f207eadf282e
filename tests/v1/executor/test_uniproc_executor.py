# SPDX-License-Identifier: Apache-2.0
"""Real tiny models through executor, worker and scheduler, against Transformers."""

import pytest

from tests.utils import random_token_ids
from tests.v1.executor.utils import ARCHITECTURES, check, generate, make_config, start


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("chunk", [16, 64])
def test_logprobs_equal_transformers(tiny_model, arch, chunk):
    path = tiny_model(arch)
    executor, scheduler = start(make_config(path, arch, chunk=chunk))
    prompts = {f"{n}": random_token_ids(n, seed=n) for n in (1, 8, 17, 40, 90)}
    check(path, prompts, generate(executor, scheduler, prompts, 12), 12)
    executor.shutdown()


def test_preemption_changes_nothing(tiny_model):
    path = tiny_model("qwen3")
    executor, scheduler = start(make_config(path, "qwen3", num_gpu_blocks_override=62))
    prompts = {f"{n}": random_token_ids(n, seed=n) for n in (50, 51, 52, 53)}
    results = generate(executor, scheduler, prompts, 60)
    assert sum(result.num_preemptions for result in results.values()) > 0
    check(path, prompts, results, 60)


def test_calls_by_name_and_by_function(tiny_model):
    executor, _ = start(make_config(tiny_model("llama"), "llama"))
    model = executor.driver_worker.model_runner.model
    assert executor.collective_rpc("get_model") == [model]
    assert executor.collective_rpc(
        lambda worker, a, b: (worker, a, b), args=(1,), kwargs={"b": 2}
    ) == [(executor.driver_worker, 1, 2)]
    assert executor.collective_rpc("apply_model", args=(type,)) == [type(model)]
    assert executor.determine_available_memory() == 2**22
    executor.check_health()
    executor.shutdown()
    with pytest.raises(AssertionError, match="not loaded"):
        executor.collective_rpc("get_model")
