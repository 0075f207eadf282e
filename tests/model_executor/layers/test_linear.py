# SPDX-License-Identifier: Apache-2.0
"""Linear layers: where checkpoint tensors land, what is computed, what is refused."""

import pytest
import torch
import torch.nn.functional as F

from vllm.exceptions import ConfigError, ModelLoadError
from vllm.model_executor.layers import sharding
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)


@pytest.mark.parametrize("cls", [ReplicatedLinear, ColumnParallelLinear, RowParallelLinear])
@pytest.mark.parametrize("bias", [True, False])
def test_single_projection_equals_torch(cls: type, bias: bool) -> None:
    layer = cls(6, 10, bias, prefix="proj")
    weight, b = torch.randn(10, 6), torch.randn(10) if bias else None
    layer.weight.weight_loader(layer.weight, weight)
    if b is not None:
        layer.bias.weight_loader(layer.bias, b)
    x = torch.randn(3, 6)
    out, skipped_bias = layer(x)
    torch.testing.assert_close(out, F.linear(x, weight, b))
    assert skipped_bias is None


def test_qkv_parts_land_in_order_with_unequal_heads() -> None:
    layer = QKVParallelLinear(8, 4, 6, 2, v_head_size=3, prefix="qkv_proj", return_bias=False)
    parts = {"q": torch.randn(24, 8), "k": torch.randn(8, 8), "v": torch.randn(6, 8)}
    biases = {name: torch.randn(len(part)) for name, part in parts.items()}
    for name in ("v", "q", "k"):
        layer.weight.weight_loader(layer.weight, parts[name], name)
        layer.bias.weight_loader(layer.bias, biases[name], name)
    assert torch.equal(layer.weight, torch.cat([parts["q"], parts["k"], parts["v"]]))
    assert torch.equal(layer.bias, torch.cat([biases["q"], biases["k"], biases["v"]]))
    assert layer.output_partition_sizes == [24, 8, 6]
    assert (layer.num_heads, layer.num_kv_heads) == (6, 2)


@pytest.mark.parametrize(
    ("shard_id", "shape", "named"),
    [
        ("q", (23, 8), r"qkv_proj.weight \(part 'q'\).*\[23, 8\].*needs \[24, 8\]"),
        ("k", (24, 8), r"qkv_proj.weight \(part 'k'\).*\[24, 8\].*needs \[8, 8\]"),
        ("v", (8, 7), r"qkv_proj.weight \(part 'v'\).*\[8, 7\].*needs \[8, 8\]"),
        ("v", (), r"qkv_proj.weight \(part 'v'\).*\[\].*needs \[8, 8\]"),
        ("x", (8, 8), "part 'x' is none of"),
        (None, (40, 8), "store the projections fused"),
    ],
)
def test_misfits_name_layer_part_and_shapes(
    shard_id: str | None, shape: tuple[int, ...], named: str
) -> None:
    layer = QKVParallelLinear(8, 4, 6, 2, bias=False, prefix="model.qkv_proj")
    with pytest.raises(ModelLoadError, match=named):
        layer.weight.weight_loader(layer.weight, torch.zeros(shape), shard_id)


def test_single_projection_refuses_misfits_and_parts() -> None:
    row = RowParallelLinear(6, 10, prefix="o_proj")
    with pytest.raises(ModelLoadError, match=r"o_proj.weight.*\[10, 5\].*needs \[10, 6\]"):
        row.weight.weight_loader(row.weight, torch.zeros(10, 5))
    with pytest.raises(ModelLoadError, match=r"o_proj.bias.*\[9\].*needs \[10\]"):
        row.bias.weight_loader(row.bias, torch.zeros(9))
    with pytest.raises(ModelLoadError, match="part 'q'"):
        row.weight.weight_loader(row.weight, torch.zeros(10, 6), "q")


def test_quantization_is_refused_by_class() -> None:
    class GPTQConfig:
        pass

    with pytest.raises(ConfigError, match="up_proj: quantization GPTQConfig"):
        ReplicatedLinear(4, 4, quant_config=GPTQConfig(), prefix="up_proj")


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_ranks_hold_their_share(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "get_tensor_model_parallel_rank", lambda: rank)
    monkeypatch.setattr(sharding, "get_tensor_model_parallel_world_size", lambda: 4)
    q, k, v = torch.randn(16, 8), torch.randn(4, 8), torch.randn(4, 8)
    qkv = QKVParallelLinear(8, 2, 8, 2, bias=False)
    for name, part in (("q", q), ("k", k), ("v", v)):
        qkv.weight.weight_loader(qkv.weight, part, name)
    kv = slice(2 * (rank // 2), 2 * (rank // 2) + 2)  # two ranks share each key/value head
    assert torch.equal(qkv.weight, torch.cat([q[4 * rank : 4 * rank + 4], k[kv], v[kv]]))

    gate, up = torch.randn(8, 8), torch.randn(8, 8)
    merged = MergedColumnParallelLinear(8, [8, 8], bias=False)
    merged.weight.weight_loader(merged.weight, gate, 0)
    merged.weight.weight_loader(merged.weight, up, 1)
    own = slice(2 * rank, 2 * rank + 2)
    assert torch.equal(merged.weight, torch.cat([gate[own], up[own]]))

    row = RowParallelLinear(8, 6, bias=False)
    down = torch.randn(6, 8)
    row.weight.weight_loader(row.weight, down)
    assert torch.equal(row.weight, down[:, own])

    with pytest.raises(ConfigError, match="6 does not divide by tensor_parallel_size=4"):
        RowParallelLinear(6, 6, prefix="o_proj")
    with pytest.raises(ConfigError, match="3 heads cannot be spread over 4 ranks"):
        QKVParallelLinear(8, 2, 12, 3)
