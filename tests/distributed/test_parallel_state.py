# SPDX-License-Identifier: Apache-2.0
"""Groups and collectives over gloo, and that one rank costs nothing."""

import subprocess
import sys

import pytest
import torch

from tests.distributed import on_ranks
from tests.distributed.ranks import run_ranks
from vllm import distributed
from vllm.distributed.launch import launcher_rank
from vllm.distributed.utils import memory_per_rank, threads_per_rank
from vllm.exceptions import ConfigError
from vllm.platforms import DeviceMemory
from vllm.utils.cpu_affinity import usable_cpus


def test_one_rank_does_nothing() -> None:
    x = torch.randn(2, 3)
    assert distributed.tensor_model_parallel_all_reduce(x) is x
    assert distributed.tensor_model_parallel_all_gather(x) is x
    assert distributed.get_tensor_model_parallel_rank() == 0
    assert distributed.get_tensor_model_parallel_world_size() == 1
    assert not distributed.model_parallel_is_initialized()
    distributed.destroy_distributed_environment()
    with pytest.raises(AssertionError, match="one rank holds the whole model"):
        distributed.get_tp_group()


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, vllm.distributed, vllm.distributed.utils; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_collectives_stay_within_their_group() -> None:
    results = run_ranks(on_ranks.collectives, 4)
    for world_rank, result in enumerate(results):
        first = world_rank // 2 * 2
        a, b = first + 1.0, first + 2.0
        assert result["place"] == (world_rank % 2, 2)
        assert result["ranks"] == (first, first + 1)
        assert torch.equal(result["sum"], torch.full((2, 3), a + b))
        assert torch.equal(result["sum_bf16"], torch.full((2, 3), a + b, dtype=torch.bfloat16))
        assert torch.equal(
            result["last"], torch.cat([torch.full((2, 3), a), torch.full((2, 3), b)], -1)
        )
        assert torch.equal(
            result["first"], result["last"].view(2, 2, 3).transpose(0, 1).reshape(4, 3)
        )
        assert result["half"].dtype == torch.float16
        assert torch.equal(result["half"].float(), result["first"])
        strided = torch.arange(6.0).view(3, 2).t()
        assert torch.equal(result["strided"], torch.cat([strided + first, strided + first + 1], -1))
        assert torch.equal(result["sum_strided"], 2 * strided + 2 * first + 1)
        assert result["ints"] == [2**40 + first, 2**40 + first + 1]


def test_dummy_weights_are_parts_of_the_same_tensors() -> None:
    whole = on_ranks.dummy_weights()
    assert not any(value.isnan().any() for value in whole.values())
    first, second = run_ranks(on_ranks.split_dummy_weights, 2)
    for name in ("replicated.weight", "replicated.bias", "row.bias", "norm.weight", "norm.bias"):
        assert torch.equal(first[name], whole[name]) and torch.equal(second[name], whole[name])
    for name in ("column.weight", "column.bias", "sinks"):
        assert torch.equal(torch.cat([first[name], second[name]]), whole[name])
    row = torch.cat([first["row.weight"], second["row.weight"]], 1)
    assert torch.equal(row, whole["row.weight"])
    embed = torch.cat([first["embed.weight"], second["embed.weight"]])
    assert torch.equal(embed, torch.cat([whole["embed.weight"], torch.zeros(1, 8)]))
    for kind in ("weight", "bias"):
        # 6 query heads of 4 rows, of which each rank has 3, and the one key and value head.
        name = f"qkv.{kind}"
        q, kv = whole[name][:24], whole[name][24:]
        assert torch.equal(first[name], torch.cat([q[:12], kv]))
        assert torch.equal(second[name], torch.cat([q[12:], kv]))
    gate, up = whole["gate_up.weight"].chunk(2)
    assert torch.equal(first["gate_up.weight"], torch.cat([gate[:3], up[:3]]))
    assert torch.equal(second["gate_up.weight"], torch.cat([gate[3:], up[3:]]))


def test_a_machine_is_divided_among_its_ranks() -> None:
    host = DeviceMemory(total=100, available=60, used=10, bound_by="host memory")
    assert memory_per_rank(host, 1) is host
    assert memory_per_rank(host, 2) == DeviceMemory(50, 30, 10, "host memory shared by 2 ranks")
    assert threads_per_rank(1) == usable_cpus()
    assert threads_per_rank(10_000) == 1


def test_a_launcher_that_says_too_little_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match="MASTER_ADDR is not in the environment; start"):
        launcher_rank()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(ConfigError, match="RANK is not in the environment"):
        launcher_rank()
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "x")
    with pytest.raises(ConfigError, match="WORLD_SIZE='x'"):
        launcher_rank()
    monkeypatch.setenv("WORLD_SIZE", "4")
    place = launcher_rank()
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size) == (3, 4, 3, 4)
