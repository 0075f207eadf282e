# SPDX-License-Identifier: Apache-2.0
"""Each sampling field against its definition in plain numbers, and failures of single rows."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.v1.sample.helpers import CPU, pack, processed, sample, sampling
from vllm.v1.sample.sampler import ALL_MASKED, NON_FINITE, OVERFLOW, Sampler
from vllm.v1.sample.states import SamplingStates

V = 700
INF = float("inf")


def logits_of(seed: int = 0, *, spread: float = 2.0, rows: int | None = None) -> torch.Tensor:
    shape = (V,) if rows is None else (rows, V)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def in_order(values: np.ndarray) -> np.ndarray:
    """Ids by falling value, of equals the lower first."""
    return np.lexsort((np.arange(len(values)), -values))


def kept(values: np.ndarray) -> set[int]:
    return set(np.nonzero(values > -INF)[0].tolist())


def test_greedy_takes_the_largest_and_of_equals_the_lowest_id() -> None:
    logits = torch.zeros(2, V)
    logits[0, [40, 17, 99]] = 5.0
    logits[1, 3] = 1.0
    assert sample(logits, [sampling(temperature=0)] * 2).token_ids == [17, 3]


def test_temperature_divides_the_logits() -> None:
    logits = logits_of()
    got = processed(logits, sampling(temperature=0.7))
    np.testing.assert_allclose(got, logits.numpy() / 0.7, rtol=1e-6)


def test_penalties_follow_their_definition() -> None:
    logits, prompt, output = logits_of(), [1, 2, 2, 3], [3, 4, 4, 4]
    params = sampling(
        temperature=0, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.25
    )
    want = logits.double().numpy().copy()
    for token in {*prompt, *output}:
        want[token] = want[token] / 1.3 if want[token] > 0 else want[token] * 1.3
    for token, count in Counter(output).items():
        want[token] -= 0.5 * count + (-0.25)
    got = processed(logits, params, prompts=prompt, outputs=output)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_presence_and_frequency_ignore_the_prompt() -> None:
    logits = logits_of()
    params = sampling(temperature=0, frequency_penalty=2.0, presence_penalty=2.0)
    got = processed(logits, params, prompts=[1, 2, 3], outputs=[])
    np.testing.assert_array_equal(got, logits.numpy())


def test_counts_grow_with_the_output_as_if_given_at_once() -> None:
    logits = logits_of()
    output = [int(t) for t in torch.randint(0, V, (300,), generator=torch.Generator())]
    params = sampling(temperature=0, logprobs=-1, repetition_penalty=1.1, frequency_penalty=0.3)
    states = SamplingStates(1, V, CPU)
    states.add_request(0, params, [5, 6], [])
    for token in output:
        states.append_token(0, token)
    grown = Sampler("processed_logits")(logits[None].clone(), states.gather([0]))
    at_once = sample(
        logits[None], [params], prompts=[[5, 6]], outputs=[output], mode="processed_logits"
    )
    assert grown == at_once


def test_logit_bias_adds() -> None:
    logits = logits_of()
    got = processed(logits, sampling(temperature=0, logit_bias={4: 100, 9: -2.5}))
    want = logits.numpy().copy()
    want[4] += 100
    want[9] -= 2.5
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_allowed_token_ids_leave_only_these() -> None:
    got = processed(logits_of(), sampling(temperature=0, allowed_token_ids=[9, 5, 5, 300]))
    assert kept(got) == {5, 9, 300}


def test_a_bias_does_not_bring_back_what_is_masked() -> None:
    params = sampling(temperature=0, allowed_token_ids=[5], logit_bias={6: 100})
    assert kept(processed(logits_of(), params)) == {5}


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ([], {7}),
        ([1], {7, 2}),
        ([1, 2], {7, 3}),
        ([9, 1, 2], {7, 3}),
        ([2, 1], {7, 2}),
        ([1, 9], {7}),
        ([4, 4], {7, 4}),
        ([4], {7}),
    ],
)
def test_bad_words_ban_the_token_that_would_complete_them(
    output: list[int], banned: set[int]
) -> None:
    words = [[7], [1, 2], [1, 2, 3], [4, 4, 4]]
    params = sampling(temperature=0, bad_words_token_ids=words)
    got = processed(logits_of(), params, outputs=output)
    assert set(range(V)) - kept(got) == banned


def test_min_tokens_bars_every_stop_token_until_then() -> None:
    params = sampling(temperature=0, min_tokens=2, stop_token_ids=[5, 6], eos_token_ids=[1])
    barred = [
        set(range(V)) - kept(processed(logits_of(), params, outputs=[9] * n)) for n in range(4)
    ]
    assert barred == [{1, 5, 6}, {1, 5, 6}, set(), set()]


def test_the_grammar_bitmask_masks_only_its_rows() -> None:
    logits = logits_of(rows=3)
    bitmask = pack([[3, 31, 32, V - 1], None, [0]], V)
    got = sample(logits, [sampling(temperature=0)] * 3, bitmask=bitmask).token_ids
    allowed = torch.tensor([3, 31, 32, V - 1])
    assert got[0] == allowed[logits[0, allowed].argmax()]
    assert got[1:] == [int(logits[1].argmax()), 0]


def test_tokens_past_the_end_of_the_bitmask_are_not_allowed() -> None:
    logits = logits_of(rows=1)
    logits[0, V - 1] = 100.0
    bitmask = pack([list(range(64))], 64)
    bitmask[0, -1] ^= 1 << 5  # a row of ones would be a row without a grammar
    assert sample(logits, [sampling(temperature=0)], bitmask=bitmask).token_ids[0] < 64


@pytest.mark.parametrize("top_k", [1, 2, 50, V - 1, V, 10 * V])
def test_top_k_keeps_the_k_likeliest(top_k: int) -> None:
    logits = logits_of()
    got = processed(logits, sampling(top_k=top_k))
    assert kept(got) == set(in_order(logits.numpy())[:top_k].tolist())


@pytest.mark.parametrize("top_k", [1, 3, 200])
def test_top_k_is_exact_among_equals(top_k: int) -> None:
    logits = torch.randint(0, 3, (V,), generator=torch.Generator().manual_seed(0)).float()
    assert kept(processed(logits, sampling(top_k=top_k))) == set(in_order(logits.numpy())[:top_k])


def nucleus(logits: np.ndarray, p: float) -> set[int]:
    order = in_order(logits)
    weights = np.exp(logits[order].astype(np.float64) - logits.max())
    before = np.cumsum(weights) - weights
    return set(order[: max(1, int((before < p * weights.sum()).sum()))].tolist())


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.1, 2.0, 20.0])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, spread: float) -> None:
    logits = logits_of(spread=spread)
    assert kept(processed(logits, sampling(top_p=top_p))) == nucleus(logits.numpy(), top_p)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.9999])
def test_top_p_over_a_wide_flat_distribution_sorts(top_p: float) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(3)) * 0.1
    assert kept(processed(logits, sampling(top_p=top_p))) == nucleus(logits.numpy(), top_p)


def test_top_p_is_taken_over_what_top_k_left() -> None:
    logits = logits_of()
    top = in_order(logits.numpy())[:20]
    masked = np.full(V, -INF, dtype=np.float32)
    masked[top] = logits.numpy()[top]
    got = processed(logits, sampling(top_k=20, top_p=0.6))
    assert kept(got) == nucleus(masked, 0.6)


@pytest.mark.parametrize("min_p", [0.01, 0.3, 1.0])
def test_min_p_drops_what_is_below_its_share_of_the_likeliest(min_p: float) -> None:
    logits = logits_of()
    ratio = np.exp(logits.double().numpy() / 1.5 - logits.max().item() / 1.5)
    got = processed(logits, sampling(min_p=min_p, temperature=1.5))
    assert kept(got) == set(np.nonzero(ratio >= min_p)[0].tolist())


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-5},
        {"temperature": 1.1e-5},
        {"temperature": 1e-30},
        {"top_p": 1e-6},
        {"top_k": 1},
        {"min_p": 1.0},
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_narrowest_settings_equal_greedy_beside_ordinary_rows(
    fields: dict[str, float], dtype: torch.dtype
) -> None:
    logits = logits_of(rows=6, spread=30.0).to(dtype)
    if not fields.keys() & {"min_p"} and fields.get("temperature") != 1.1e-5:
        logits[:, 600] = logits.amax(-1)  # equals, as half precision makes them
    narrow = [sampling(seed=i, **fields) for i in range(5)]
    neighbour = sampling(seed=9, temperature=1.0)
    got = sample(logits, [*narrow, neighbour]).token_ids
    assert got[:5] == logits[:5].float().argmax(-1).tolist()
    assert got[5:] == sample(logits[5:], [neighbour]).token_ids


def test_logits_of_any_finite_size_are_drawn_from() -> None:
    logits = torch.full((2, V), -3e38)
    logits[:, 8] = 3e38
    assert sample(logits, [sampling(temperature=2e-5), sampling()]).token_ids == [8, 8]


def test_a_draw_depends_on_seed_and_output_index() -> None:
    logits = torch.zeros(1, V)

    def draw(seed: int, index: int) -> int:
        return sample(logits, [sampling(seed=seed)], outputs=[[0] * index]).token_ids[0]

    assert draw(5, 3) == draw(5, 3)
    assert len({draw(5, index) for index in range(20)}) > 15
    assert len({draw(seed, 0) for seed in range(-20, 0, 1) if seed != -1}) > 15


@pytest.mark.parametrize("bad", [float("nan"), INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad: float, temperature: float) -> None:
    logits = logits_of(rows=3)
    params = [sampling(seed=i, temperature=temperature, logprobs=2) for i in range(3)]
    want = sample(logits, params)
    logits[1, 5] = bad
    got = sample(logits, params)
    assert got.errors == {1: NON_FINITE}
    assert [got.token_ids[i] for i in (0, 2)] == [want.token_ids[i] for i in (0, 2)]
    assert [got.logprobs[i] for i in (0, 2)] == [want.logprobs[i] for i in (0, 2)]
    assert got.logprobs[1] is None


def test_nan_behind_a_mask_is_still_an_error() -> None:
    logits = logits_of(rows=1)
    logits[0, 5] = float("nan")
    got = sample(logits, [sampling(temperature=0, allowed_token_ids=[6])])
    assert got.errors == {0: NON_FINITE}


def test_a_row_without_any_token_left_fails_alone() -> None:
    logits = logits_of(rows=3)
    params = [
        sampling(temperature=1.0),
        sampling(allowed_token_ids=[5], stop_token_ids=[5], min_tokens=1),
        sampling(temperature=0),
    ]
    got = sample(logits, params, bitmask=pack([None, None, []], V))
    assert got.errors == {1: ALL_MASKED, 2: ALL_MASKED}
    assert got.token_ids[0] == sample(logits[:1], params[:1]).token_ids[0]


def test_a_row_serves_one_request_after_another() -> None:
    states = SamplingStates(2, V, CPU)
    states.add_request(0, sampling(temperature=0, logit_bias={3: 100}), [1], [])
    states.remove_request(0)
    states.remove_request(0)
    states.add_request(0, sampling(temperature=0), [1], [])
    logits = logits_of(rows=1)
    assert Sampler()(logits.clone(), states.gather([0])).token_ids == [int(logits.argmax())]


def test_stop_tokens_and_bad_words_past_the_vocabulary_do_not_reach_the_next_row() -> None:
    logits = torch.zeros(2, V)
    logits[1, 3] = 1.0
    params = sampling(
        temperature=0, min_tokens=1, eos_token_ids=[V + 3], bad_words_token_ids=[[V + 3], [1, V]]
    )
    assert sample(logits, [params, sampling(temperature=0)]).token_ids == [0, 3]


def test_a_penalty_that_overflows_fails_its_row_alone_and_says_so() -> None:
    logits = torch.full((2, V), 1e30)
    params = [sampling(temperature=0, repetition_penalty=1e-30), sampling(temperature=0)]
    got = sample(logits, params, prompts=[[5], [5]])
    assert got.errors == {0: OVERFLOW}
    assert got.token_ids[1] == 0
