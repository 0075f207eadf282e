# SPDX-License-Identifier: Apache-2.0
"""Logprobs: values, order, ranks, and what the four modes mean."""

import pytest
import torch

from tests.v1.sample.helpers import sample, sampling
from vllm.v1.sample.logprobs import gather_logprobs, prompt_logprobs

V = 300


def make_logits(rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(5)) * 2


@pytest.mark.parametrize("num_logprobs", [0, 1, 5, 74, 200, V, -1])
def test_rows_hold_the_token_and_then_the_likeliest(num_logprobs: int) -> None:
    logits = make_logits(4)
    token_ids = torch.tensor([0, 17, 299, int(logits[3].argmax())])
    got = prompt_logprobs(logits, token_ids, num_logprobs)
    want = torch.log_softmax(logits.double(), -1)
    k = V if num_logprobs == -1 else num_logprobs
    for row in range(4):
        order = torch.sort(want[row], descending=True, stable=True).indices
        ids = [int(token_ids[row]), *order[:k].tolist()]
        assert got.token_ids[row] == ids
        torch.testing.assert_close(
            torch.tensor(got.logprobs[row]).double(), want[row, ids], atol=1e-5, rtol=0
        )
        assert got.sampled_ranks[row] == order.tolist().index(int(token_ids[row])) + 1
    assert got.sampled_ranks[3] == 1


@pytest.mark.parametrize("k", [1, 2, 3, 4, 60, -1])
def test_equal_values_are_ranked_by_id(k: int) -> None:
    values = torch.zeros(1, 200)
    values[0, [150, 20, 90]] = 1.0
    got = gather_logprobs(values, torch.tensor([90]), k)
    want = [20, 90, 150, *[i for i in range(200) if i not in (20, 90, 150)]]
    assert got.token_ids[0][1:] == want[: k if k >= 0 else 200]
    assert got.sampled_ranks == [2]
    assert gather_logprobs(values, torch.tensor([0]), k).sampled_ranks == [4]


def test_raw_modes_know_nothing_of_masks_and_processed_ones_do() -> None:
    logits = make_logits()
    params = sampling(temperature=0.5, top_k=3, logit_bias={7: 20.0}, logprobs=4)
    raw = torch.log_softmax(logits[0], -1)
    biased = logits[0].clone()
    biased[7] += 20
    biased /= 0.5
    top = biased.topk(3).indices
    kept = torch.full((V,), -torch.inf)
    kept[top] = biased[top]
    wanted = {
        "raw_logprobs": raw,
        "raw_logits": logits[0],
        "processed_logprobs": torch.log_softmax(kept, -1),
        "processed_logits": kept,
    }
    for mode, want in wanted.items():
        result = sample(logits, [params], mode=mode)  # type: ignore[arg-type]
        lists = result.logprobs[0]
        assert lists is not None
        assert lists.token_ids[0][0] == result.token_ids[0] == 7
        torch.testing.assert_close(torch.tensor(lists.logprobs[0]), want[lists.token_ids[0]])
    raw_top = raw.topk(4).indices.tolist()
    result = sample(logits, [params])
    assert result.logprobs[0] is not None
    assert result.logprobs[0].token_ids[0][1:] == raw_top


def test_processed_values_of_a_greedy_row_are_taken_after_penalties() -> None:
    logits = make_logits()
    params = sampling(temperature=0, presence_penalty=2.0, logprobs=2)
    token = int(logits.argmax())
    result = sample(logits, [params], outputs=[[token]], mode="processed_logits")
    penalised = logits[0].clone()
    penalised[token] -= 2.0
    assert result.logprobs[0] is not None
    assert result.logprobs[0].token_ids[0][1:] == penalised.topk(2).indices.tolist()


def test_each_row_gets_as_many_as_it_asked_for() -> None:
    logits = make_logits(4)
    params = [sampling(logprobs=n) for n in (None, 0, 5, -1)]
    widths = [None if p is None else len(p.token_ids[0]) for p in sample(logits, params).logprobs]
    assert widths == [None, 1, 6, V + 1]
