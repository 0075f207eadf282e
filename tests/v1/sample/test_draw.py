# SPDX-License-Identifier: Apache-2.0
"""Draws: from the exact distribution, independent of one another, never of probability zero."""

import math

import numpy as np
import pytest
import torch

from vllm.v1.sample.draw import draw_tokens
from vllm.v1.sample.random import uniform


def uniforms(seeds: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return uniform(seeds.astype(np.uint64), indices.astype(np.uint64))


def chi_square_excess(counts: np.ndarray, expected: np.ndarray) -> float:
    """How many standard deviations chi-square lies above its mean."""
    dof = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - dof) / math.sqrt(2 * dof))


SERIES = {
    "one seed": (np.full(200_000, 7), np.arange(200_000)),
    "many seeds": (np.arange(200_000), np.full(200_000, 3)),
    "high seeds": (2**63 + np.arange(200_000, dtype=np.uint64), np.zeros(200_000)),
    "diagonal": (np.arange(200_000), np.arange(200_000)),
}


@pytest.mark.parametrize("name", SERIES)
def test_uniforms_fill_the_unit_interval_evenly(name: str) -> None:
    u = uniforms(*SERIES[name])
    assert u.min() >= 0.0 and u.max() < 1.0
    counts = np.histogram(u, bins=1000, range=(0, 1))[0]
    assert abs(chi_square_excess(counts, np.full(1000, len(u) / 1000))) < 5


@pytest.mark.parametrize("name", SERIES)
def test_neighbouring_uniforms_are_independent(name: str) -> None:
    u = uniforms(*SERIES[name])
    pairs = np.histogram2d(u[:-1:2], u[1::2], bins=20, range=((0, 1), (0, 1)))[0]
    assert abs(chi_square_excess(pairs.ravel(), np.full(400, len(u) / 2 / 400))) < 5


def test_neighbouring_seeds_share_no_number() -> None:
    seeds, indices = np.meshgrid(np.arange(300), np.arange(300))
    u = uniforms(seeds.ravel(), indices.ravel())
    assert len(np.unique(u)) == len(u)


def test_draws_follow_the_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(600, generator=generator)  # three blocks, the last one short
    scores[::7] = -torch.inf
    scores = scores - scores.max()
    n = 60_000
    u = uniforms(np.arange(n) // 10, np.arange(n) % 10)
    drawn = torch.cat([draw_tokens(scores.expand(1000, -1), part) for part in u.reshape(-1, 1000)])
    counts = np.bincount(drawn.numpy(), minlength=600)
    expected = torch.softmax(scores.double(), -1).numpy() * n
    assert counts[::7].sum() == 0
    likely = expected > 0
    assert abs(chi_square_excess(counts[likely], expected[likely])) < 5


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 1000])
@pytest.mark.parametrize("only", [0, -1])
def test_a_token_of_probability_zero_is_never_drawn(vocab_size: int, only: int) -> None:
    scores = torch.full((3, vocab_size), -torch.inf)
    scores[:, only] = 0.0
    extremes = np.array([0.0, 0.5, 1.0 - 2.0**-53])
    assert draw_tokens(scores, extremes).tolist() == [only % vocab_size] * 3


def test_the_ends_of_the_unit_interval_give_the_first_and_last_likely_token() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 1500, generator=generator) * 4
    scores[:, :5] = -torch.inf
    scores[:, -300:] = -torch.inf
    scores -= scores.amax(-1, keepdim=True)
    drawn = draw_tokens(scores, np.array([0.0, 1.0 - 2.0**-53]))
    assert drawn[0] == 5
    assert 1190 <= drawn[1] <= 1199


def test_many_tiny_probabilities_are_not_lost() -> None:
    # In float32 a running sum over the whole row would stop growing at 2^24 equal weights.
    scores = torch.zeros(1, 50_000)
    for u, token in ((0.25, 12_500), (0.99999, 49_999), (0.5, 25_000)):
        assert draw_tokens(scores, np.array([u])).item() == token


def test_the_number_of_rows_does_not_change_a_draw() -> None:
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(40, 5001, generator=generator)
    scores -= scores.amax(-1, keepdim=True)
    u = uniforms(np.arange(40), np.arange(40))
    together = draw_tokens(scores, u)
    alone = [draw_tokens(scores[i : i + 1], u[i : i + 1]).item() for i in range(40)]
    assert together.tolist() == alone
