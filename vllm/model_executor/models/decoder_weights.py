# SPDX-License-Identifier: Apache-2.0
"""How a decoder's checkpoint fills its parameters: fused projections, and the tied output head.

Tying is decided by the checkpoint as well as by the configuration. With `tie_word_embeddings`
the file may hold the embedding, the head, or both; if both and they differ, they are not tied.
Without it, both must be there, which the loader's accounting checks.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from vllm.logger import init_logger
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.weight_utils import AutoWeightsLoader, WeightsMapper

logger = init_logger(__name__)

FUSED_QKV = WeightsMapper(
    orig_to_new_stacked={
        ".q_proj": (".qkv_proj", "q"),
        ".k_proj": (".qkv_proj", "k"),
        ".v_proj": (".qkv_proj", "v"),
    }
)
FUSED_GATE_UP = WeightsMapper(
    orig_to_new_stacked={".gate_proj": (".gate_up_proj", 0), ".up_proj": (".gate_up_proj", 1)}
)
DECODER_WEIGHTS = FUSED_QKV | FUSED_GATE_UP

# Tables that old checkpoints store although they follow from the configuration.
DERIVED_SUFFIXES = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached")

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def load_decoder_weights(
    model: nn.Module,
    lm_head: ParallelLMHead,
    embed_tokens: VocabParallelEmbedding,
    weights: Iterable[tuple[str, torch.Tensor]],
    *,
    mapper: WeightsMapper = DECODER_WEIGHTS,
) -> set[str]:
    """Fill the parameters of a decoder; returns the names of those written.

    Raises:
        ModelLoadError: a tensor has no place, or not the shape of its place.
    """
    heads: list[torch.Tensor] = []
    if lm_head.weight is embed_tokens.weight:
        # The head can only be judged once the embedding is there, and may come first.
        weights = _hold_back(weights, HEAD, heads)
    loader = AutoWeightsLoader(model, ignore_unexpected_suffixes=list(DERIVED_SUFFIXES))
    written = loader.load_weights(weights, mapper=mapper)
    for head in heads:
        written.add(_load_tied_head(lm_head, embed_tokens, head, EMBEDDING in written))
    return written


def _hold_back(
    weights: Iterable[tuple[str, torch.Tensor]], name: str, held: list[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    for key, tensor in weights:
        if key == name:
            held.append(tensor)
        else:
            yield key, tensor


def _load_tied_head(
    lm_head: ParallelLMHead,
    embed_tokens: VocabParallelEmbedding,
    head: torch.Tensor,
    embedding_is_loaded: bool,
) -> str:
    """Put a head that came although the configuration ties it; returns the parameter written."""
    if not embedding_is_loaded:
        embed_tokens.weight_loader(embed_tokens.weight, head)
        return EMBEDDING
    tied = embed_tokens.weight
    lm_head.untie_weights()
    lm_head.weight_loader(lm_head.weight, head)
    if torch.equal(lm_head.weight, tied):
        lm_head.tie_weights(embed_tokens)
        return EMBEDDING
    logger.warning(
        "The configuration ties the output head to the embedding, but the checkpoint holds a "
        "different head; they are not tied"
    )
    return HEAD
