# SPDX-License-Identifier: Apache-2.0
"""The last proof before serving: tokens of a model meet in its attention and nowhere else.

Requests run together as one row of tokens. That is right only if everything but attention treats
each token alone; a short convolution, a running state or a frequency that follows the longest
position would mix strangers. Nothing in a configuration says so for certain, so the loaded model
is asked: with an attention that looks at its own token only, changed neighbours must change
nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vllm.config import ModelConfig
from vllm.exceptions import ConfigError
from vllm.model_executor.models.transformers.fusers.attention import VLLM_ATTN_IMPL

if TYPE_CHECKING:
    from vllm.model_executor.models.transformers.base import Base

_NUM_TOKENS = 6
_KEPT = 3  # the token whose neighbours change
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@torch.inference_mode()
def find_position_offset(model: "Base", model_config: ModelConfig) -> int:
    """What the model counts its first token as, by what it does when it is told nothing.

    Raises:
        ConfigError: it counts in a way that no offset describes.
    """
    ids = torch.arange(1, 1 + _NUM_TOKENS) * 7 % model_config.vocab_size
    pad = getattr(model.config, "pad_token_id", None)
    offsets = [0] if not isinstance(pad, int) else [0, pad + 1]
    if pad is not None:
        ids[ids == pad] = (pad + 1) % model_config.vocab_size
    ids = ids[: min(_NUM_TOKENS, model_config.max_model_len)]
    positions = torch.arange(len(ids)).unsqueeze(0)
    with _each_alone():
        expected = model.hf_decoder(input_ids=ids.unsqueeze(0), use_cache=False)[0].float()
        allowed = _TOLERANCE[model.dtype] * max(float(expected.abs().max()), 1e-6)
        for offset in offsets:
            shifted = positions + offset
            result = model.hf_decoder(
                input_ids=ids.unsqueeze(0), position_ids=shifted, use_cache=False
            )
            if float((result[0].float() - expected).abs().max()) <= allowed:
                return offset
    raise ConfigError(
        f"{type(model.hf_model).__name__} counts positions in a way that differs from 0, 1, 2 ...; "
        "it cannot be told the positions of its tokens"
    )


@torch.inference_mode()
def check_independence(model: "Base", model_config: ModelConfig) -> None:
    """Run a few tokens twice with other neighbours, and compare the one that stayed.

    Raises:
        ConfigError: its hidden state changed.
    """
    vocab_size, last = model_config.vocab_size, model_config.max_model_len - 1
    ids = torch.arange(1, 1 + _NUM_TOKENS) * 7 % vocab_size
    positions = torch.arange(_NUM_TOKENS).clamp(max=last)
    others = (ids + 3) % vocab_size
    others[_KEPT] = ids[_KEPT]
    far = torch.full_like(positions, last)
    far[_KEPT] = positions[_KEPT]
    with _each_alone():
        first = model.forward(ids, positions)[_KEPT].float()
        second = model.forward(others, positions)[_KEPT].float()
        third = model.forward(others, far)[_KEPT].float()
    allowed = _TOLERANCE[model.dtype] * max(float(first.abs().max()), 1e-6)
    for changed, what in ((second, "tokens"), (third, "positions")):
        # Not below, rather than above: NaN must not pass.
        if not float((changed - first).abs().max()) <= allowed:
            raise ConfigError(
                f"{type(model.hf_model).__name__}: a token's hidden state depends on other {what} "
                "outside attention (a convolution, a state, or a length-dependent embedding); "
                "requests that run together would disturb each other"
            )


@contextmanager
def _each_alone() -> Iterator[None]:
    """Exchange the attention function for one without neighbours, without touching the model."""
    before = ALL_ATTENTION_FUNCTIONS[VLLM_ATTN_IMPL]
    ALL_ATTENTION_FUNCTIONS[VLLM_ATTN_IMPL] = _alone_attention_forward
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS[VLLM_ATTN_IMPL] = before


def _alone_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    """Each token's own value, weighed by how far its query and key agree."""
    groups = query.shape[1] // key.shape[1]
    agreement = torch.sigmoid((query * key.repeat_interleave(groups, 1)).mean(-1, keepdim=True))
    output = value.repeat_interleave(groups, 1) * agreement
    return output.transpose(1, 2).contiguous(), None
