# SPDX-License-Identifier: Apache-2.0
"""Tensors here are tiny: a second thread costs more than it does."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run on one thread and put the number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
