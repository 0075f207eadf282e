# SPDX-License-Identifier: Apache-2.0
"""One step of the model: the scheduler's plan in, sampled tokens out.

1. rows: requests that ended go, new ones come, blocks are added      (InputBatch.update)
2. the flat batch is gathered from the rows                           (InputBatch.gather)
3. attention metadata, once per KV cache group                        (_attn_metadata)
4. the model over the flat batch                                      (_forward)
5. logits where prompt logprobs are wanted                            (PromptLogprobs)
6. logits where a token is sampled; draw; append to the rows          (_sample)
"""

import numpy as np
import torch
from torch import Tensor, nn

from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention.attention import Attention
from vllm.v1.attention.backend import (
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.sample.sampler import Sampler
from vllm.v1.sample.states import SamplingStates
from vllm.v1.worker.block_table import BlockTable, MultiGroupBlockTable
from vllm.v1.worker.input_batch import InputBatch, StepInputs
from vllm.v1.worker.kv_cache import initialize_kv_cache
from vllm.v1.worker.prompt_logprobs import PromptLogprobs


class ModelRunner:
    """Runs steps of one model on one device.

    Attributes:
        model: the model, ready to run.
        attention_layers: its attention layers by name.
        batch: rows of the requests; made by `initialize_kv_cache`.
    """

    def __init__(self, vllm_config: VllmConfig, model: nn.Module, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.attention_layers: dict[str, Attention] = {
            name: layer
            for name, layer in vllm_config.static_forward_context.items()
            if isinstance(layer, Attention)
        }
        self.batch: InputBatch | None = None
        self._max_num_reqs = vllm_config.scheduler_config.max_num_seqs
        self._max_model_len = vllm_config.model_config.max_model_len
        self._vocab_size = vllm_config.model_config.vocab_size
        self._sampler = Sampler(vllm_config.model_config.logprobs_mode)
        self._prompt_logprobs = PromptLogprobs(self._compute_logits, self._vocab_size)
        self._builders: list[tuple[AttentionMetadataBuilder[AttentionMetadata], list[str]]] = []
        self._table_of_builder: list[BlockTable] = []
        self._kv_allocations: list[Tensor] = []

    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """What each attention layer keeps, by name."""
        return {name: layer.get_kv_cache_spec() for name, layer in self.attention_layers.items()}

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the cache and everything sized by it; forgets any request."""
        self._kv_allocations = initialize_kv_cache(
            kv_cache_config, self.attention_layers, self.device
        )
        groups = kv_cache_config.kv_cache_groups
        tables = MultiGroupBlockTable(groups, self._max_num_reqs, self._max_model_len)
        self._builders, self._table_of_builder = [], []
        for group, table in zip(groups, tables.tables, strict=True):
            by_backend: dict[str, list[str]] = {}
            for name in group.layer_names:
                backend = self.attention_layers[name].get_attn_backend()
                by_backend.setdefault(backend.get_name(), []).append(name)
            for names in by_backend.values():
                builder_cls = self.attention_layers[names[0]].get_attn_backend().get_builder_cls()
                builder = builder_cls(group.kv_cache_spec, names, self.device)
                self._builders.append((builder, names))
                self._table_of_builder.append(table)
        states = SamplingStates(self._max_num_reqs, self._vocab_size, self.device)
        self.batch = InputBatch(self._max_num_reqs, self._max_model_len, tables, states)

    @torch.inference_mode()
    def execute_model(
        self, scheduler_output: SchedulerOutput, grammar_output: GrammarOutput | None = None
    ) -> ModelRunnerOutput:
        """Run one step.

        Args:
            grammar_output: which tokens the grammars allow, for requests that have one.
        """
        batch = self.batch
        assert batch is not None, "the KV cache is not initialized"
        batch.update(scheduler_output)
        output = ModelRunnerOutput()
        if not scheduler_output.num_scheduled_tokens:
            return output
        step = batch.gather(scheduler_output.num_scheduled_tokens)
        hidden = self._forward(step)
        output.prompt_logprobs.update(self._prompt_logprobs.compute(batch, step, hidden))
        if len(step.sampling):
            self._sample(batch, step, hidden, grammar_output, output)
        return output

    def _forward(self, step: StepInputs) -> Tensor:
        """Hidden states [num_tokens, hidden_size]."""
        token_ids = torch.from_numpy(step.token_ids).to(self.device)
        positions = torch.from_numpy(step.positions).to(self.device)
        with set_forward_context(self._attn_metadata(step), num_tokens=step.num_tokens):
            hidden: Tensor = self.model(token_ids, positions)
        return hidden

    def _attn_metadata(self, step: StepInputs) -> dict[str, AttentionMetadata]:
        """Metadata by layer name; layers of one group share one record."""
        query_start_loc = torch.from_numpy(step.query_start_loc)
        seq_lens = torch.from_numpy(step.seq_lens)
        max_seq_len = int(step.seq_lens.max())
        by_layer: dict[str, AttentionMetadata] = {}
        for (builder, layer_names), table in zip(
            self._builders, self._table_of_builder, strict=True
        ):
            block_table = torch.from_numpy(table.gather(step.rows, max_seq_len))
            slots = torch.from_numpy(table.slot_mapping(step.token_rows, step.positions))
            metadata = builder.build(
                CommonAttentionMetadata(
                    query_start_loc=query_start_loc.to(self.device),
                    query_start_loc_cpu=query_start_loc,
                    seq_lens=seq_lens.to(self.device),
                    seq_lens_cpu=seq_lens,
                    num_reqs=len(step.req_ids),
                    num_actual_tokens=step.num_tokens,
                    max_query_len=int(np.diff(step.query_start_loc).max()),
                    max_seq_len=max_seq_len,
                    block_table_tensor=block_table.to(self.device),
                    block_table_cpu=block_table,
                    slot_mapping=slots.to(self.device),
                )
            )
            by_layer.update(dict.fromkeys(layer_names, metadata))
        return by_layer

    def _sample(
        self,
        batch: InputBatch,
        step: StepInputs,
        hidden: Tensor,
        grammar_output: GrammarOutput | None,
        output: ModelRunnerOutput,
    ) -> None:
        """Draw a token for each request that is due one, and record it."""
        last_tokens = torch.from_numpy(step.query_start_loc[1:][step.sampling] - 1)
        logits = self._compute_logits(hidden[last_tokens.to(self.device)])
        req_ids = [step.req_ids[index] for index in step.sampling.tolist()]
        metadata = batch.sampling_states.gather(step.rows[step.sampling].tolist())
        sampled = self._sampler(logits, metadata, self._bitmask(req_ids, grammar_output))
        for index, req_id in enumerate(req_ids):
            error = sampled.errors.get(index)
            if error is not None:
                output.errors[req_id] = error
                continue
            token_id = sampled.token_ids[index]
            batch.append_token(req_id, token_id)
            output.sampled_token_ids[req_id] = [token_id]
            logprobs = sampled.logprobs[index]
            if logprobs is not None:
                output.logprobs[req_id] = logprobs

    def _bitmask(self, req_ids: list[str], grammar_output: GrammarOutput | None) -> Tensor | None:
        """Allowed tokens per sampling request; requests without a grammar may draw any."""
        if grammar_output is None:
            return None
        width = grammar_output.bitmask.shape[1]
        bitmask = np.full((len(req_ids), width), -1, dtype=np.int32)
        mask_of = dict(zip(grammar_output.req_ids, grammar_output.bitmask, strict=True))
        for index, req_id in enumerate(req_ids):
            if req_id in mask_of:
                bitmask[index] = mask_of[req_id]
        return torch.from_numpy(bitmask).to(self.device)

    def _compute_logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.compute_logits(hidden)  # type: ignore[operator]
        return logits
