# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of a model. A class that has these methods can be registered."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class VllmModel(Protocol):
    """Tokens and positions in, hidden states out."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run the decoder over one flat batch.

        Args:
            input_ids: [T] int64, tokens of all requests one after the other.
            positions: [T] int64, position of each token in its request.

        Returns:
            [T, hidden_size], after the last norm.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill parameters from checkpoint tensors; returns the names of those written.

        Raises:
            ModelLoadError: a tensor has no place, or not the shape of its place.
        """
        ...


@runtime_checkable
class VllmModelForTextGeneration(VllmModel, Protocol):
    """A model with an output head."""

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, vocab_size], fp32."""
        ...
