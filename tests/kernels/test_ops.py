# SPDX-License-Identifier: Apache-2.0
"""Every implementation of every op against the op's definition."""

import pytest
import torch

from vllm.ir.op import op
from vllm.ir.ops import (
    add_rms_norm,
    fused_add_rms_norm_,
    linear,
    rms_norm,
    rotary_embedding,
    rotary_embedding_,
    silu_and_mul,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KERNELS = [i for i in linear.available() if i.name != "reference"]
SHAPES = [(1, 8), (7, 769), (83, 512), (3, 1), (2, 3, 40)]


def rand(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("impl", rms_norm.available(), ids=repr)
def test_rms_norm_matches_the_definition(impl, shape, dtype):
    x, weight = rand(shape, dtype, 0), rand(shape[-1:], dtype, 1)
    got, want = impl(x.clone(), weight, 1e-6), rms_norm.reference(x, weight, 1e-6)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    torch.testing.assert_close(got, want, **rms_norm.tolerance[dtype].kwargs)


@pytest.mark.parametrize("impl", rms_norm.available(), ids=repr)
def test_rms_norm_does_not_see_the_scale_of_its_input(impl):
    x, weight = rand((5, 320), torch.float32, 0), rand((320,), torch.float32, 1)
    torch.testing.assert_close(impl(x * 64, weight, 0.0), impl(x, weight, 0.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("impl", fused_add_rms_norm_.available(), ids=repr)
def test_fused_add_rms_norm_matches_the_definition(impl, shape, dtype):
    x, residual = rand(shape, dtype, 0), rand(shape, dtype, 1)
    weight = rand(shape[-1:], dtype, 2)
    normed, total = add_rms_norm.reference(x, residual, weight, 1e-5)
    assert impl(x, residual, weight, 1e-5) is None
    torch.testing.assert_close(x, normed, **fused_add_rms_norm_.tolerance[dtype].kwargs)
    assert torch.equal(residual, total)


@pytest.mark.parametrize("impl", add_rms_norm.available(), ids=repr)
def test_add_rms_norm_leaves_its_inputs_alone(impl):
    x, residual = rand((4, 24), torch.float32, 0), rand((4, 24), torch.float32, 1)
    before = x.clone(), residual.clone()
    _, total = impl(x, residual, torch.ones(24), 1e-5)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])
    assert torch.equal(total, x + residual)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (7, 770), (83, 512), (2, 3, 40)])
@pytest.mark.parametrize("impl", silu_and_mul.available(), ids=repr)
def test_silu_and_mul_matches_the_definition(impl, shape, dtype):
    x = rand(shape, dtype, 0) * 6
    got, want = impl(x), silu_and_mul.reference(x)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    torch.testing.assert_close(got, want, **silu_and_mul.tolerance[dtype].kwargs)


@pytest.mark.parametrize("impl", silu_and_mul.available(), ids=repr)
def test_silu_and_mul_takes_extreme_gates(impl):
    gate = torch.tensor([[-1e4, -200.0, -0.0, 200.0, 1e4]])
    got = impl(torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(got, torch.tensor([[0.0, 0.0, 0.0, 200.0, 1e4]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary_dim"), [(64, 64), (80, 32), (16, 6), (2, 2)])
@pytest.mark.parametrize("impl", rotary_embedding_.available(), ids=repr)
def test_rotary_embedding_matches_the_definition(impl, head_size, rotary_dim, is_neox, dtype):
    positions = torch.tensor([0, 49, 3, 3, 17, 1, 48])
    cache = rand((50, rotary_dim), torch.float32, 0)
    fused = rand((7, 6 * head_size + 5), dtype, 1)  # rows that lie apart, as in a fused product
    query, key = fused[:, : 4 * head_size], fused[:, 4 * head_size : 6 * head_size]
    want_q, want_k = rotary_embedding.reference(positions, query, key, cache, head_size, is_neox)
    rest = fused[:, 6 * head_size :].clone()
    impl(positions, query, key, cache, head_size, is_neox)
    tolerance = rotary_embedding_.tolerance[dtype].kwargs
    torch.testing.assert_close(query, want_q, **tolerance)
    torch.testing.assert_close(key, want_k, **tolerance)
    assert torch.equal(fused[:, 6 * head_size :], rest)


@pytest.mark.parametrize("impl", rotary_embedding.available(), ids=repr)
def test_rotary_embedding_keeps_the_length_of_a_vector(impl):
    angles = rand((50, 8), torch.float32, 0)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    query, key = rand((3, 32), torch.float32, 1), rand((3, 16), torch.float32, 2)
    turned, _ = impl(torch.tensor([4, 0, 49]), query, key, cache, 16, True)
    torch.testing.assert_close(turned.norm(dim=-1), query.norm(dim=-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 7), (33, 64), (130, 769), (64, 4096)])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 8, 31, 257])
@pytest.mark.parametrize("impl", KERNELS, ids=repr)
def test_linear_matches_the_definition(impl, m, n, k, dtype):
    x = rand((m, k + 3), dtype, 0)[:, :k]
    weight, bias = rand((n, k), dtype, 1), rand((n,), dtype, 2)
    got = impl(x, weight, bias)
    # The product in fp64 is the yardstick: torch's own bf16 one sums in bf16 on some CPUs.
    want = linear.reference(x.double(), weight.double(), bias.double()).to(dtype)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    torch.testing.assert_close(got, want, **linear.tolerance[dtype].kwargs)


def test_onednn_meets_few_different_numbers_of_rows(monkeypatch):
    """It keeps compiled code for each; a server would grow with every new size of batch."""
    impl = next(i for i in linear.available() if i.name == "onednn")
    seen = []
    torch_linear = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda x, *w: seen.append(len(x)) or torch_linear(x, *w)
    )
    weight = rand((1, 1), torch.bfloat16, 0)
    for num_rows in range(24, 2049):
        assert impl(rand((num_rows, 1), torch.bfloat16, 1), weight, None).shape == (num_rows, 1)
        assert num_rows <= seen[-1] <= 1.29 * num_rows
    assert len(set(seen)) <= 36


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("impl", [i for i in KERNELS if i.name == "cpp"], ids=repr)
def test_own_linear_gives_a_row_the_same_bits_in_any_batch(impl, dtype):
    x, weight = rand((29, 200), dtype, 0), rand((37, 200), dtype, 1)
    alone = torch.cat([impl(x[i : i + 1], weight, None) for i in range(len(x))])
    assert torch.equal(impl(x, weight, None), alone)


def test_the_latest_implementation_whose_predicate_holds_runs():
    @op
    def double(x: int) -> int:
        return 2 * x

    double.implement("even", when=lambda x: x % 2 == 0)(lambda x: -2 * x)
    double.implement("four", when=lambda x: x == 4)(lambda x: 4000)
    double.implement("absent", when=lambda x: True, available=False)(lambda x: 0)
    assert [double(1), double(2), double(4)] == [2, -4, 4000]
    assert list(map(repr, double.available())) == ["four", "even", "reference"]
