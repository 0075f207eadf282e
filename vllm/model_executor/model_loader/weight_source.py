# SPDX-License-Identifier: Apache-2.0
"""What a source of weights yields. Knows neither file formats nor models."""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import torch


class Weight(NamedTuple):
    """One checkpoint tensor.

    Attributes:
        name: its name in the Transformers layout, e.g. "model.norm.weight".
        tensor: its values, on the CPU; may be a read-only view of a mapped file.
        file: the name of the file it came from, without folders, for messages.
    """

    name: str
    tensor: torch.Tensor
    file: str


WeightSource: TypeAlias = Iterable[Weight]
