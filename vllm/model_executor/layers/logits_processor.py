# SPDX-License-Identifier: Apache-2.0
"""Hidden states to logits: the product with the output head, the soft cap and the scale."""

import torch
from torch import nn

from vllm.distributed.communication_op import tensor_model_parallel_all_gather
from vllm.ir.ops import linear
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead


class LogitsProcessor(nn.Module):
    """Computes fp32 logits over the real vocabulary.

    1. product with the head in the model's dtype, as the reference implementations do;
    2. the ranks' parts of the vocabulary joined, so that every rank draws the same tokens;
    3. fp32, padding cut off;
    4. soft cap: `cap * tanh(x / cap)`;
    5. scale.
    """

    def __init__(
        self, vocab_size: int, *, scale: float = 1.0, soft_cap: float | None = None
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.scale = scale
        self.soft_cap = soft_cap

    def forward(self, lm_head: ParallelLMHead, hidden_states: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, vocab_size], fp32, the same on every rank."""
        logits = linear(hidden_states, lm_head.weight, lm_head.bias)
        if lm_head.tp_size > 1:
            logits = tensor_model_parallel_all_gather(logits)
        if logits.shape[-1] != self.vocab_size:
            logits = logits[..., : self.vocab_size].contiguous()
        logits = logits.float()
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits if self.scale == 1.0 else logits * self.scale
