# SPDX-License-Identifier: Apache-2.0
"""The token embedding and the output head of a Transformers model, split over ranks by rows.

The embedding stays the model's own module, since its class may do more than look up (scale a row,
norm it): it is asked for this rank's rows only. The head is replaced.
"""

from torch import Tensor, nn
from transformers import PreTrainedModel

from vllm.distributed import tensor_model_parallel_all_gather
from vllm.ir.ops import linear
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.transformers.linears import REPLICATE


class GatheredLMHead(ParallelLMHead):
    """A head that the model calls itself, and that gives every rank all logits."""

    def __init__(self, head: nn.Linear, prefix: str) -> None:
        super().__init__(
            head.out_features,
            head.in_features,
            bias=head.bias is not None,
            params_dtype=head.weight.dtype,
            prefix=prefix,
        )
        # Model code reads these of torch's layer.
        self.in_features, self.out_features = head.in_features, head.out_features

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., hidden_size] -> [..., vocab_size]."""
        logits = linear(hidden_states, self.weight, self.bias)
        return tensor_model_parallel_all_gather(logits)[..., : self.num_embeddings]


def split_vocabulary(model: PreTrainedModel) -> dict[str, str]:
    """Split embedding and head, unless one of their parameters is tied to a third one.

    Returns:
        What goes before the model's tensor-parallel plan: a head that is not split must stay
        whole, whatever the plan says, as it may be tied.
    """
    names = {module: name for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or type(head) is not nn.Linear:
        return {}
    own = {f"{names[head]}.weight", f"{names[head]}.bias", f"{names[embedding]}.weight"}
    pair = {f"{names[head]}.weight", f"{names[embedding]}.weight"}
    ties = (set(tie) for tie in model.all_tied_weights_keys.items())
    if not isinstance(embedding, nn.Embedding) or any(t & own and t != pair for t in ties):
        return {names[head]: REPLICATE}
    _split_embedding(embedding, names[embedding])
    parent, _, attribute = names[head].rpartition(".")
    setattr(model.get_submodule(parent), attribute, GatheredLMHead(head, names[head]))
    return {}


def _split_embedding(embedding: nn.Embedding, prefix: str) -> None:
    rows = VocabParallelEmbedding(
        embedding.num_embeddings,
        embedding.embedding_dim,
        params_dtype=embedding.weight.dtype,
        prefix=prefix,
    )
    own_forward = embedding.forward
    embedding.weight = rows.weight
    embedding.padding_idx = None  # matters to gradients only, and may be another rank's row

    def forward(input_ids: Tensor) -> Tensor:
        """[...] int64 -> [..., hidden_size], the same on every rank."""
        return rows.look_up(input_ids, own_forward)

    vars(embedding)["forward"] = forward
