# SPDX-License-Identifier: Apache-2.0
"""A small real decoder over the engine's attention layer, and its dense fp64 twin.

One attention layer per entry of `windows`; no norms or MLP, so that attention is all there is.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from tests.v1.attention.reference import dense_attention
from vllm.config import (
    CacheConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.model_executor.layers.attention import Attention
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD = 50, 24, 4, 2, 6
SCALE = 0.4


def make_vllm_config(*, max_num_seqs: int = 8, max_model_len: int = 128, **cache) -> VllmConfig:
    """A resolved configuration; its model exists in this file only."""
    return VllmConfig(
        model_config=ModelConfig(
            model="tiny",
            path=Path("."),
            served_model_name=("tiny",),
            tokenizer="tiny",
            hf_config=LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=HIDDEN,
                num_attention_heads=HEADS,
                num_key_value_heads=KV_HEADS,
                head_dim=HEAD,
            ),
            architecture="TinyModel",
            dtype=torch.float32,
            max_model_len=max_model_len,
            vocab_size=VOCAB,
        ),
        cache_config=CacheConfig(**{"block_size": 4, **cache}),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=64, max_num_seqs=max_num_seqs, max_model_len=max_model_len
        ),
    )


class TinyModel(nn.Module):
    """Embedding plus position, attention layers with residuals, output head."""

    def __init__(self, vllm_config: VllmConfig, windows: list[int | None]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def param(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * std, False)

        self.embed = param(VOCAB, HIDDEN, std=1.0)
        self.place = param(vllm_config.model_config.max_model_len, HIDDEN, std=0.5)
        self.head = param(VOCAB, HIDDEN, std=0.1)
        width = (HEADS + 2 * KV_HEADS) * HEAD
        self.qkv = nn.ParameterList([param(width, HIDDEN, std=0.3) for _ in windows])
        self.out = nn.ParameterList([param(HIDDEN, HEADS * HEAD, std=0.1) for _ in windows])
        self.sinks = nn.ParameterList(
            [nn.Parameter(torch.rand(HEADS, generator=generator) * 7 - 3, False) for _ in windows]
        )
        self.windows = windows
        with set_current_vllm_config(vllm_config):
            self.attn = nn.ModuleList(
                [
                    Attention(
                        HEADS,
                        HEAD,
                        SCALE,
                        num_kv_heads=KV_HEADS,
                        per_layer_sliding_window=window,
                        prefix=f"layers.{index}.attn",
                        sinks=self.sinks[index],
                    )
                    for index, window in enumerate(windows)
                ]
            )

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden = self.embed[input_ids] + self.place[positions]
        for qkv, out, attn in zip(self.qkv, self.out, self.attn, strict=True):
            q, k, v = (hidden @ qkv.T).split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], -1)
            hidden = hidden + attn(q.contiguous(), k.contiguous(), v.contiguous()) @ out.T
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return (hidden @ self.head.T).float()

    def dense_logits(self, token_ids: list[int]) -> Tensor:
        """Logits [len(token_ids), VOCAB] in fp64, without cache, batch or engine code."""
        hidden = (self.embed[token_ids] + self.place[: len(token_ids)]).double()
        for qkv, out, window, sinks in zip(
            self.qkv, self.out, self.windows, self.sinks, strict=True
        ):
            q, k, v = (hidden @ qkv.double().T).split(
                [HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], -1
            )
            attended, _ = dense_attention(
                q.view(-1, HEADS, HEAD),
                k.view(-1, KV_HEADS, HEAD),
                v.view(-1, KV_HEADS, HEAD),
                scale=SCALE,
                window=window,
                sinks=sinks,
            )
            hidden = hidden + attended.flatten(1) @ out.double().T
        return hidden @ self.head.double().T


def kv_cache_config(model: TinyModel, num_blocks: int) -> KVCacheConfig:
    """Each distinct window is a group; layer i of every group shares allocation i."""
    names: dict[int | None, list[str]] = {}
    specs = {}
    for layer in model.attn:
        names.setdefault(layer.sliding_window, []).append(layer.layer_name)
        specs[layer.sliding_window] = layer.get_kv_cache_spec()
    groups = tuple(KVCacheGroupSpec(tuple(names[w]), specs[w]) for w in names)
    page = groups[0].kv_cache_spec.page_size_bytes
    tensors = tuple(
        KVCacheTensor(
            num_blocks * page,
            tuple(g.layer_names[i] for g in groups if i < len(g.layer_names)),
        )
        for i in range(max(len(g.layer_names) for g in groups))
    )
    return KVCacheConfig(num_blocks, tensors, groups)


@dataclass
class Driver:
    """The scheduler's part of a test: blocks given out in a scattered order, steps by hand."""

    num_groups: int
    block_size: int = 4
    free: list[int] = field(default_factory=lambda: [(i * 37) % 97 for i in range(1, 97)])
    held: dict[str, list[list[int]]] = field(default_factory=dict)
    tokens: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    params: dict = field(default_factory=dict)

    def start(self, req_id: str, prompt: list[int], params) -> None:
        self.tokens[req_id] = (prompt, [])
        self.params[req_id] = params

    def step(self, runner, plan: dict[str, int], *, preempt=(), finish=(), grammar=None):
        """Schedule `plan` tokens, run the step, and record what was sampled."""
        output = SchedulerOutput(num_scheduled_tokens=dict(plan), finished_req_ids=set(finish))
        output.preempted_req_ids.update(preempt)
        for req_id in (*preempt, *finish):
            self.free.extend(b for group in self.held.pop(req_id) for b in group)
            del self.computed[req_id]
        for req_id, count in plan.items():
            prompt, generated = self.tokens[req_id]
            is_new = req_id not in self.held
            done = self.computed.get(req_id, 0)
            blocks = self.held.setdefault(req_id, [[] for _ in range(self.num_groups)])
            short = -(-(done + count) // self.block_size) - len(blocks[0])
            new = tuple([self.free.pop(0) for _ in range(short)] for _ in blocks)
            for group, ids in zip(blocks, new, strict=True):
                group.extend(ids)
            if is_new:
                output.scheduled_new_reqs.append(
                    NewRequestData(req_id, prompt, list(generated), self.params[req_id], new, done)
                )
            else:
                output.scheduled_cached_reqs.append(
                    CachedRequestData(req_id, new if short else None, done)
                )
            self.computed[req_id] = done + count
        result = runner.execute_model(output, grammar)
        for req_id, ids in result.sampled_token_ids.items():
            self.tokens[req_id][1].extend(ids)
        return result
