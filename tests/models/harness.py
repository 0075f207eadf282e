# SPDX-License-Identifier: Apache-2.0
"""Runs one model over one sequence without an engine: a cache, a block table and its metadata."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vllm.config import (
    CacheConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.forward_context import set_forward_context
from vllm.model_executor.models.registry import ModelRegistry
from vllm.v1.attention.backend import CommonAttentionMetadata

BLOCK_SIZE = 4


def vllm_config_for(
    path: Path, *, dtype: torch.dtype = torch.float32, max_model_len: int = 256
) -> VllmConfig:
    """A resolved configuration for the model in `path`."""
    from transformers import AutoConfig

    hf_config = AutoConfig.from_pretrained(path, local_files_only=True)
    return VllmConfig(
        model_config=ModelConfig(
            model=str(path),
            path=path,
            served_model_name=(path.name,),
            tokenizer=str(path),
            hf_config=hf_config,
            architecture=hf_config.architectures[0],
            dtype=dtype,
            max_model_len=max_model_len,
            vocab_size=hf_config.vocab_size,
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=max_model_len, max_num_seqs=4, max_model_len=max_model_len
        ),
        attention_backend="TORCH_REF",
    )


def build_model(vllm_config: VllmConfig) -> nn.Module:
    """The model with uninitialised weights."""
    model_config = vllm_config.model_config
    cls = ModelRegistry.resolve_model_cls(model_config.architecture)
    before = torch.get_default_dtype()
    torch.set_default_dtype(model_config.dtype)
    try:
        with set_current_vllm_config(vllm_config):
            model: nn.Module = cls(vllm_config=vllm_config)
    finally:
        torch.set_default_dtype(before)
    return model.requires_grad_(False).eval()


def checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of the safetensors files in `path`."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def load_model(path: Path, **options: Any) -> tuple[nn.Module, VllmConfig]:
    """The model in `path`, ready to run."""
    vllm_config = vllm_config_for(path, **options)
    model = build_model(vllm_config)
    written = model.load_weights(checkpoint(path).items())  # type: ignore[operator]
    assert written == {name for name, _ in model.named_parameters()}
    return model, vllm_config


@torch.inference_mode()
def logprobs(
    model: nn.Module,
    vllm_config: VllmConfig,
    token_ids: Sequence[int],
    *,
    chunks: Iterable[int] | None = None,
) -> torch.Tensor:
    """Logprobs after each token, [n, V], the sequence being fed in steps of `chunks` tokens."""
    layers = vllm_config.static_forward_context
    num_blocks = -(-len(token_ids) // BLOCK_SIZE) + 1
    builders = {}
    for name, layer in layers.items():
        spec, backend = layer.get_kv_cache_spec(), layer.get_attn_backend()
        shape = backend.get_kv_cache_shape(
            num_blocks,
            spec.block_size,
            spec.num_kv_heads,
            head_size=spec.head_size,
            head_size_v=spec.head_size_v,
        )
        # NaN: reading a slot that was never written must show.
        layer.bind_kv_cache(torch.full(shape, float("nan"), dtype=getattr(torch, spec.dtype)))
        builders[name] = backend.get_builder_cls()(spec, [name], torch.device("cpu"))
    outputs, done = [], 0
    for count in chunks or [len(token_ids)]:
        common = _metadata(done, count, num_blocks)
        metadata = {name: builder.build(common) for name, builder in builders.items()}
        ids = torch.tensor(token_ids[done : done + count])
        with set_forward_context(metadata, num_tokens=count):
            hidden = model(ids, torch.arange(done, done + count))
        outputs.append(model.compute_logits(hidden))  # type: ignore[operator]
        done += count
    assert done == len(token_ids), "chunks must cover the sequence"
    logits = torch.cat(outputs)
    assert logits.dtype == torch.float32
    return torch.log_softmax(logits, dim=-1)


def _metadata(done: int, count: int, num_blocks: int) -> CommonAttentionMetadata:
    # Blocks in falling order, block 0 left out: a mix-up of positions and slots would show.
    table = torch.arange(num_blocks - 1, 0, -1, dtype=torch.int32).unsqueeze(0)
    positions = torch.arange(done, done + count)
    slots = table[0, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
    query_start_loc = torch.tensor([0, count], dtype=torch.int32)
    seq_lens = torch.tensor([done + count], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=query_start_loc,
        query_start_loc_cpu=query_start_loc,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens,
        num_reqs=1,
        num_actual_tokens=count,
        max_query_len=count,
        max_seq_len=done + count,
        block_table_tensor=table,
        block_table_cpu=table,
        slot_mapping=slots,
    )
