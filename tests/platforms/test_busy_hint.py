# SPDX-License-Identifier: Apache-2.0
"""A machine whose CPUs are taken is told of at the start, an idle one is not."""

import pytest

from vllm.platforms.cpu import busy_hint


@pytest.mark.parametrize(
    ("load", "num_cpus", "num_threads", "is_told"),
    [
        (0.0, 2, 2, False),
        (0.6, 2, 2, False),  # what starting up makes itself
        (1.1, 2, 2, True),
        (1.1, 2, 1, False),
        (40.0, 64, 2, False),
        (70.0, 64, 2, True),
    ],
)
def test_the_hint_comes_when_others_take_the_cpus(
    load: float, num_cpus: int, num_threads: int, is_told: bool
) -> None:
    hint = busy_hint(load, num_cpus, num_threads)
    assert (hint is not None) is is_told
    if hint is not None:
        assert f"load average {load:.1f} on {num_cpus}" in hint and "GOMP_SPINCOUNT" in hint
