# SPDX-License-Identifier: Apache-2.0
"""The attention op against fp64, over paths, sinks, windows, caps, shapes, types and blocks."""

import itertools

import pytest
import torch

from tests.v1.attention.reference import PagedCase
from vllm.v1.attention.ops import paged_attention as op_module
from vllm.v1.attention.ops.merge_attn_states import apply_sinks, merge_attn_states
from vllm.v1.attention.ops.paged_attention import AttentionRule, paged_attention
from vllm.v1.attention.ops.tiles import plan_tiles

PATHS = {
    "prefill": [(5, 5), (33, 33)],
    "extend": [(7, 40), (20, 21)],
    "decode": [(1, 1), (1, 16), (1, 17), (1, 45)],
    "mixed": [(1, 40), (9, 9), (1, 3), (4, 30), (1, 17)],
}
# fp32 sums in another order; inputs of the narrow types are exact, their outputs are rounded.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def make_sinks(kind: str, num_heads: int) -> torch.Tensor | None:
    generator = torch.Generator().manual_seed(7)
    return {
        "none": None,
        "drawn": torch.rand(num_heads, generator=generator) * 7 - 3,
        "large": torch.full((num_heads,), 20.0),
        "absent": torch.full((num_heads,), -1e9),
    }[kind]


def check(case, *, scale=0.3, causal=True, window=None, soft_cap=None, sinks=None):
    want, want_lse = case.expected(
        scale=scale, causal=causal, window=window, soft_cap=soft_cap, sinks=sinks
    )
    rule = AttentionRule(
        scale=scale, causal=causal, sliding_window=window, logits_soft_cap=soft_cap
    )
    out, lse = paged_attention(case.query, case.kv_cache, case.batch, rule, sinks=sinks)
    assert (out.shape, out.dtype) == (want.shape, case.dtype)
    assert (lse.shape, lse.dtype) == (want_lse.shape, torch.float32)
    tolerance = TOLERANCE[case.dtype]
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), want_lse, atol=2e-5, rtol=2e-5)
    return out


@pytest.mark.parametrize("sinks", ["none", "drawn", "large", "absent"])
@pytest.mark.parametrize("window", [None, 5, 16, 24])
@pytest.mark.parametrize("path", PATHS)
def test_sinks_and_windows_on_every_path(path, window, sinks):
    case = PagedCase(PATHS[path])
    if window is not None:
        case.blank_outside_window(window)
    check(case, window=window, sinks=make_sinks(sinks, 4))


@pytest.mark.parametrize("soft_cap", [0.5, 5.0])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("path", PATHS)
def test_soft_cap_leaves_the_sink_alone(path, window, soft_cap):
    case = PagedCase(PATHS[path], seed=1)
    check(case, scale=1.3, window=window, soft_cap=soft_cap, sinks=make_sinks("drawn", 4))


@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (6, 1, 7, 7), (4, 4, 64, 64), (6, 2, 24, 8)])
@pytest.mark.parametrize("path", PATHS)
def test_head_counts_and_sizes(path, shape, soft_cap):
    case = PagedCase(PATHS[path], shape=shape, seed=2)
    check(case, window=9, soft_cap=soft_cap, sinks=make_sinks("drawn", shape[0]))
    check(case, soft_cap=soft_cap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("path", PATHS)
def test_dtypes_and_block_sizes(path, block_size, dtype):
    case = PagedCase(PATHS[path], block_size=block_size, dtype=dtype, seed=3)
    check(case, sinks=make_sinks("drawn", 4))
    check(case, window=7, sinks=make_sinks("drawn", 4).to(dtype))


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("path", PATHS)
def test_non_causal(path, soft_cap, window):
    check(
        PagedCase(PATHS[path], seed=4),
        causal=False,
        window=window,
        soft_cap=soft_cap,
        sinks=make_sinks("drawn", 4),
    )


def test_windowed_prompt_longer_than_a_tile():
    case = PagedCase([(600, 600), (300, 310)], shape=(1, 1, 8, 8), seed=5)
    check(case, window=40)
    check(case, window=40, causal=False, sinks=make_sinks("drawn", 1))


def test_scores_cut_to_the_memory_bound_give_the_same(monkeypatch):
    case = PagedCase([(40, 50), (1, 30)], seed=6)
    whole = check(case, soft_cap=3.0)
    monkeypatch.setattr(op_module, "_MAX_SCORES_BYTES", 4 * 4 * 50 * 7)
    torch.testing.assert_close(check(case, soft_cap=3.0), whole, atol=1e-6, rtol=1e-6)


def test_rows_that_see_no_key_are_zero():
    case = PagedCase([(1, 0), (5, 2), (3, 0), (1, 4)], seed=7)
    out = check(case, sinks=make_sinks("drawn", 4))
    assert torch.equal(out[:4], torch.zeros_like(out[:4]))
    assert bool((out[9] != 0).any())


def test_sinks_change_every_path():
    for path, lens in PATHS.items():
        for window in (None, 5):
            case = PagedCase(lens, seed=8)
            with_sinks = check(case, window=window, sinks=make_sinks("drawn", 4))
            without = check(case, window=window, sinks=make_sinks("absent", 4))
            assert float((with_sinks - without).abs().max()) > 0.05, (path, window)


def test_value_rows_of_ones_give_one_less_the_sinks_share():
    case = PagedCase([(1, 20), (6, 6)], seed=9)
    case.kv_cache[..., 16:] = torch.where(
        case.kv_cache[..., 16:].isnan(), torch.nan, torch.ones(())
    )
    sinks = make_sinks("drawn", 4)
    rule = AttentionRule(scale=0.3)
    out, lse = paged_attention(case.query, case.kv_cache, case.batch, rule, sinks=sinks)
    share = torch.exp(sinks - torch.logaddexp(sinks.expand_as(lse), lse))
    torch.testing.assert_close(out, (1 - share)[..., None].expand_as(out), atol=1e-6, rtol=1e-5)


def test_partials_merge_to_the_whole_and_take_the_sink_once():
    generator = torch.Generator().manual_seed(10)
    scores = torch.randn(3, 4, 30, generator=generator) * 4
    values = torch.randn(30, 8, generator=generator)
    sinks = make_sinks("drawn", 4)

    def partial(begin, end):
        part = scores[..., begin:end]
        if begin == end:
            return torch.zeros(3, 4, 8), torch.full((3, 4), -torch.inf)
        return torch.softmax(part, -1) @ values[begin:end], torch.logsumexp(part, -1)

    exact = torch.cat((scores, sinks[:, None].expand(3, 4, 1)), -1).double().softmax(-1)
    want = exact[..., :-1] @ values.double()
    for cuts in ([0, 30], [0, 7, 30], [0, 0, 30, 30], [0, 0, 3, 9, 9, 30, 30]):
        state = partial(cuts[0], cuts[1])
        for begin, end in itertools.pairwise(cuts[1:]):
            state = merge_attn_states(*state, *partial(begin, end))
        got = apply_sinks(*state, sinks)
        torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=1e-5)
    nothing = merge_attn_states(*partial(0, 0), *partial(5, 5))
    assert torch.equal(apply_sinks(*nothing, sinks), torch.zeros(3, 4, 8))


def test_decodes_of_unlike_length_are_not_padded_to_the_longest():
    lens = [(1, 4000), (1, 3000), *[(1, 100)] * 30, (1, 1100)]
    case = PagedCase(lens, shape=(1, 1, 1, 1))
    plan = plan_tiles(case.batch, causal=True, sliding_window=None)
    padded = sum(tile.num_reqs * tile.num_keys for tile in plan.tiles)
    assert padded < 1.5 * sum(s for _, s in lens)
    assert len(plan.tiles) == 5
    shared = [tile for tile in plan.tiles if tile.num_reqs > 1]
    assert max(tile.num_reqs * tile.num_keys for tile in shared) <= 2048
    windowed = plan_tiles(case.batch, causal=True, sliding_window=64)
    assert {tile.num_keys for tile in windowed.tiles} == {64}


def test_heads_that_do_not_divide_are_refused():
    case = PagedCase([(1, 4)], shape=(4, 2, 8, 8))
    with pytest.raises(ValueError, match="3 query heads do not divide over 2"):
        paged_attention(case.query[:, :3], case.kv_cache, case.batch, AttentionRule(scale=1.0))
