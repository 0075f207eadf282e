# SPDX-License-Identifier: Apache-2.0
"""Weights from a GGUF file, under their Transformers names and in their Transformers order."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from vllm.exceptions import ModelLoadError
from vllm.model_executor.model_loader.gguf_dequant import dequantize_rows
from vllm.model_executor.model_loader.weight_source import Weight
from vllm.transformers_utils.gguf_config import (
    ROPE_FREQS,
    gguf_architecture,
    gguf_config_fields,
)
from vllm.transformers_utils.gguf_utils import GGUFFile

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


def gguf_weights_iterator(path: Path, dtype: torch.dtype) -> Iterator[Weight]:
    """All tensors of a file, unpacked one at a time.

    Args:
        path: the file.
        dtype: of the tensors yielded.

    Raises:
        ConfigError: the architecture is not supported.
        ModelLoadError: the file is damaged, or holds a tensor that the architecture has not.
    """
    file = GGUFFile(path)
    permutes = gguf_architecture(file).permutes_qk
    _, config = gguf_config_fields(file)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    # All names are checked before the first tensor is unpacked.
    names = {gguf_name: hf_name(path.name, gguf_name) for gguf_name in file.tensors}
    for gguf_name, tensor in file.tensors.items():
        name = names[gguf_name]
        if name is None:
            continue
        values = dequantize_rows(file.rows(tensor), tensor.tensor_type, dtype).view(tensor.shape)
        part = gguf_name.split(".")[-2]
        if permutes and part in heads:
            values = _to_halves(values, heads[part], f"{path.name}: {gguf_name}")
        yield Weight(name, values, path.name)


def hf_name(file_name: str, gguf_name: str) -> str | None:
    """The Transformers name; None for what the configuration has already taken up.

    Raises:
        ModelLoadError: the name is unknown.
    """
    if gguf_name == ROPE_FREQS:
        return None
    match = _NAME.fullmatch(gguf_name)
    if match is not None:
        layer, part, kind = match["layer"], match["part"], match["kind"]
        if layer is None and part in _TOP_NAMES:
            return f"{_TOP_NAMES[part]}.{kind}"
        if layer is not None and part in _BLOCK_NAMES:
            return f"model.layers.{int(layer)}.{_BLOCK_NAMES[part]}.{kind}"
    raise ModelLoadError(
        f"{file_name}: the tensor {gguf_name} is not known; leaving it out would change the "
        "model's answers"
    )


def _to_halves(weight: torch.Tensor, num_heads: int, what: str) -> torch.Tensor:
    """Undo the interleaving of each head's rows.

    In the file rows 2i and 2i+1 of a head are turned together, in Transformers rows i and
    i + head_dim/2: [heads, head_dim/2, 2, ...] becomes [heads, 2, head_dim/2, ...].
    """
    if weight.shape[0] % (2 * num_heads):
        raise ModelLoadError(
            f"{what} has {weight.shape[0]} rows, which do not divide into {num_heads} heads of "
            "even size"
        )
    pairs = weight.view(num_heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
