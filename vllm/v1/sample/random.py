# SPDX-License-Identifier: Apache-2.0
"""Uniform numbers that depend on (seed, index) alone: no state, no stream, no neighbour.

A request's n-th output is drawn with number n of its seed, so the draw is the same alone or in a
batch, in any row, before and after preemption. The generator is SplitMix64 (Steele, Lea and
Flood, OOPSLA 2014) used as a hash: the seed picks a starting state, the index a step from it.
"""

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def uniform(seeds: NDArray[np.uint64], indices: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) per pair, with 53 random bits.

    The seed is mixed before the index is added, so that neighbouring seeds do not give shifted
    copies of one sequence.
    """
    state = _mix(seeds + _GOLDEN) + (indices + np.uint64(1)) * _GOLDEN
    bits = _mix(_mix(state)) >> np.uint64(11)
    numbers: NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return numbers
