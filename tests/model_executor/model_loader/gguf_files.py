# SPDX-License-Identifier: Apache-2.0
"""GGUF files made from Transformers models by the `gguf` package's writer."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from gguf import quants

from vllm.model_executor.model_loader.gguf_loader import _BLOCK_NAMES, _TOP_NAMES

BYTE_TOKENS = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]]
BYTE_TOKENS += [chr(256 + i) for i in range(256 - len(BYTE_TOKENS))]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The order in which llama.cpp's converter stores the rows of q and k."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def random_blocks(shape: tuple[int, int], tensor_type: Q, seed: int = 0) -> np.ndarray:
    """Blocks with arbitrary bits but finite scales: uint8 [rows, row_bytes]."""
    rng = np.random.default_rng(seed)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // block_size, block_bytes), np.uint8)
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]}
    halves |= {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    for start in halves[tensor_type.name]:
        scale = rng.uniform(-0.1, 0.1, blocks.shape[:2]).astype(np.float16)
        blocks[..., start : start + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def add_bpe_vocabulary(writer: gguf.GGUFWriter, size: int, pre: str = "smollm") -> None:
    """Three special tokens, all bytes, a merge, and fillers up to `size`."""
    tokens = [*SPECIAL, *BYTE_TOKENS, "he"]
    tokens += [f"filler{i}" for i in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (size - len(SPECIAL)))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def write_gguf(
    path: Path,
    model: Any,
    *,
    arch: str = "llama",
    tensor_type: Q = Q.F32,
    skip: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    values: dict[str, Any] | None = None,
) -> Path:
    """Write a Transformers model as GGUF.

    Args:
        path: of the file.
        model: a causal LM.
        arch: architecture named in the file.
        tensor_type: of matrices.
        skip: GGUF names of tensors left out.
        extra: further fp32 tensors.
        values: further metadata, below the architecture's prefix.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for key, value in (values or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(f"{arch}.{key}", value)
    add_bpe_vocabulary(writer, config.vocab_size)
    for name, tensor in _tensors(model, arch).items():
        if name not in skip:
            _add(writer, name, tensor, tensor_type)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(model: Any, arch: str) -> dict[str, np.ndarray]:
    tops = {new: old for old, new in _TOP_NAMES.items()}
    parts = {new: old for old, new in _BLOCK_NAMES.items()}
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    found = {}
    for name, param in model.named_parameters():
        stem, kind = name.rsplit(".", 1)
        values = param.detach().to(torch.float32).numpy()
        if stem in tops:
            found[f"{tops[stem]}.{kind}"] = values
            continue
        _, _, layer, part = stem.split(".", 3)
        if arch == "llama" and parts[part] in heads:
            values = interleave(values, heads[parts[part]])
        found[f"blk.{layer}.{parts[part]}.{kind}"] = values
    return found


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, tensor_type: Q) -> None:
    if values.ndim < 2 or tensor_type == Q.F32:
        writer.add_tensor(name, values)
    else:
        data = quants.quantize(values, tensor_type)
        writer.add_tensor(name, data, raw_dtype=tensor_type)
