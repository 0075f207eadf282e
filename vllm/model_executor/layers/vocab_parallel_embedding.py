# SPDX-License-Identifier: Apache-2.0
"""The token embedding and the output head, both [vocabulary, hidden_size], split by rows.

Rows may be padded; padded rows are zero and `LogitsProcessor` never shows them.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vllm.distributed.communication_op import tensor_model_parallel_all_reduce
from vllm.exceptions import ModelLoadError
from vllm.model_executor.layers.sharding import own_share, refuse_quantization, tensor_parallel


class VocabParallelEmbedding(nn.Module):
    """Token ids to rows."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        params_dtype: torch.dtype | None = None,
        padding_size: int = 1,
        quant_config: Any = None,
        prefix: str = "",
    ) -> None:
        """Allocate this rank's rows, uninitialised but for the padding.

        Args:
            num_embeddings: vocabulary of the checkpoint.
            embedding_dim: size of a row.
            params_dtype: default is torch's default dtype.
            padding_size: the number of rows is rounded up to a multiple of this, and of the
                number of ranks.
            quant_config: None; anything else is refused.
            prefix: name of the layer in the model, for messages.
        """
        super().__init__()
        refuse_quantization(quant_config, prefix)
        self.prefix = prefix
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.tp_size = tensor_parallel().size
        multiple = math.lcm(padding_size, self.tp_size)
        self.num_embeddings_padded = -(-num_embeddings // multiple) * multiple
        self._share = own_share(self.num_embeddings_padded, f"{prefix} padded vocabulary")
        self.weight = nn.Parameter(
            torch.empty(self._share.size, embedding_dim, dtype=params_dtype), requires_grad=False
        )
        self.weight.weight_loader = self.weight_loader  # type: ignore[attr-defined]
        self.weight[self._num_real_rows :].zero_()

    @property
    def _num_real_rows(self) -> int:
        """Rows held here that the checkpoint has; the rest is padding."""
        return max(0, min(self._share.size, self.num_embeddings - self._share.start))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[...] int64 -> [..., embedding_dim], the same on every rank."""
        return self.look_up(input_ids, lambda ids: F.embedding(ids, self.weight))

    def look_up(self, input_ids: torch.Tensor, lookup: Callable[..., torch.Tensor]) -> torch.Tensor:
        """As `forward`, where `lookup` makes rows of ids that count from this rank's first."""
        if self.tp_size == 1:
            return lookup(input_ids)
        # Rows of other ranks count as zero, so that the sum over the ranks is each token's row.
        own_ids = input_ids - self._share.start
        is_foreign = (own_ids < 0) | (own_ids >= self._share.size)
        rows = lookup(own_ids.masked_fill(is_foreign, 0))
        return tensor_model_parallel_all_reduce(rows.masked_fill(is_foreign.unsqueeze(-1), 0))

    def weight_loader(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: str | int | None = None
    ) -> None:
        """Copy this rank's rows and zero the padding.

        Raises:
            ModelLoadError: the tensor has another shape than [num_embeddings, embedding_dim].
        """
        expected = [self.num_embeddings, *param.shape[1:]]
        if shard_id is not None or list(loaded_weight.shape) != expected:
            raise ModelLoadError(
                f"{self.prefix}.weight: the checkpoint holds shape {list(loaded_weight.shape)}, "
                f"this layer needs {expected}"
            )
        rows = self._num_real_rows
        start = min(self._share.start, self.num_embeddings)  # a rank may hold padding only
        param.data[:rows].copy_(loaded_weight.narrow(0, start, rows))
        param.data[rows:].zero_()

    def extra_repr(self) -> str:
        return f"num_embeddings={self.num_embeddings}, embedding_dim={self.embedding_dim}"


class ParallelLMHead(VocabParallelEmbedding):
    """The output head. Its product belongs to `LogitsProcessor`, not to `forward`."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, bias: bool = False, **kwargs: Any
    ) -> None:
        """As `VocabParallelEmbedding`; `bias` adds one per vocabulary entry."""
        super().__init__(num_embeddings, embedding_dim, **kwargs)
        if bias:
            self.bias = nn.Parameter(
                torch.zeros(self._share.size, dtype=self.weight.dtype), requires_grad=False
            )
            self.bias.weight_loader = self.weight_loader  # type: ignore[attr-defined]
        else:
            self.register_parameter("bias", None)

    def tie_weights(self, embed_tokens: VocabParallelEmbedding) -> None:
        """Use the embedding's parameter as this head's weight: one storage, one name."""
        self.weight = embed_tokens.weight

    def untie_weights(self) -> None:
        """Give the head a weight of its own again, uninitialised but for the padding."""
        self.weight = nn.Parameter(torch.empty_like(self.weight), requires_grad=False)
        self.weight.weight_loader = self.weight_loader  # type: ignore[attr-defined]
        self.weight[self._num_real_rows :].zero_()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the output head is applied by LogitsProcessor")
