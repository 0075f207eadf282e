# SPDX-License-Identifier: Apache-2.0
"""A row's tokens and logprobs are the same alone and among any neighbours, in any order."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.v1.sample.helpers import pack, sample, sampling
from vllm.sampling_params import SamplingParams

V = 1500
token_ids = st.integers(0, V - 1)


def fields() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"seed": st.integers(-(2**63) + 1, 2**63 - 1).filter(lambda seed: seed != -1)},
        optional={
            "temperature": st.sampled_from([0.0, 1e-30, 0.3, 1.0, 5.0]),
            "top_p": st.sampled_from([1e-6, 0.5, 0.95]),
            "top_k": st.sampled_from([1, 40, 1499, 5000]),
            "min_p": st.sampled_from([0.01, 0.5]),
            "repetition_penalty": st.sampled_from([0.8, 1.3]),
            "frequency_penalty": st.sampled_from([-1.0, 0.7]),
            "presence_penalty": st.sampled_from([-1.0, 0.7]),
            "logit_bias": st.dictionaries(token_ids, st.floats(-100, 100), max_size=4),
            "allowed_token_ids": st.lists(token_ids, min_size=1, max_size=30),
            "bad_words_token_ids": st.lists(
                st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=3
            ),
            "min_tokens": st.integers(0, 4),
            "eos_token_ids": st.just([1]),
            "logprobs": st.sampled_from([0, 3, -1]),
        },
    )


rows_strategy = st.lists(
    st.tuples(
        fields(),
        st.lists(st.integers(0, 5), max_size=4),
        st.lists(st.integers(0, 5), max_size=4),
        st.one_of(st.none(), st.sets(token_ids, min_size=1, max_size=40)),
    ),
    min_size=2,
    max_size=6,
)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(rows=rows_strategy, seed=st.integers(0, 1000), mode=st.sampled_from(["raw", "processed"]))
def test_neighbours_change_nothing(rows: list[Any], seed: int, mode: str) -> None:
    logits = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed))
    # Coarse values make ties, which must be broken by the row alone.
    logits = (logits * 8).round() / 2
    params: list[SamplingParams] = [sampling(**row[0]) for row in rows]
    prompts, outputs, allowed = ([row[i] for row in rows] for i in (1, 2, 3))

    def run(index: list[int]) -> list[Any]:
        result = sample(
            logits[index],
            [params[i] for i in index],
            prompts=[prompts[i] for i in index],
            outputs=[outputs[i] for i in index],
            mode=f"{mode}_logprobs",  # type: ignore[arg-type]
            bitmask=pack([allowed[i] for i in index], V),
        )
        return [
            (result.errors[i], None) if i in result.errors else (token, result.logprobs[i])
            for i, token in enumerate(result.token_ids)
        ]

    alone = [run([i])[0] for i in range(len(rows))]
    everyone = list(range(len(rows)))
    assert run(everyone) == alone
    assert run(everyone[::-1]) == alone[::-1]


def test_an_unseeded_neighbour_does_not_disturb_a_seeded_request() -> None:
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(0))
    seeded = sampling(seed=42)
    alone = sample(logits[:1], [seeded]).token_ids[0]
    for drawn_seed in range(10):  # what the front end gives a request that names none
        assert sample(logits, [seeded, sampling(seed=drawn_seed)]).token_ids[0] == alone
