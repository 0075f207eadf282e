# SPDX-License-Identifier: Apache-2.0
"""Logprobs of prompt tokens, for the requests that ask for them.

The logits of a long prompt are never held at once: they are made and reduced in ranges.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from vllm.v1.outputs import LogprobsLists
from vllm.v1.sample.logprobs import prompt_logprobs
from vllm.v1.worker.input_batch import InputBatch, StepInputs

_MAX_LOGITS_BYTES = 32 * 2**20


class PromptLogprobs:
    """Computes rows for prompt positions 1 .. n - 1, as far as a step reaches.

    Args:
        compute_logits: [n, hidden_size] -> [n, vocab_size], fp32.
        vocab_size: tokens; what -1 ("all") stands for.
    """

    def __init__(self, compute_logits: Callable[[Tensor], Tensor], vocab_size: int) -> None:
        self._compute_logits = compute_logits
        self._vocab_size = vocab_size
        self._range = max(1, _MAX_LOGITS_BYTES // (4 * vocab_size))

    def compute(
        self, batch: InputBatch, step: StepInputs, hidden: Tensor
    ) -> dict[str, LogprobsLists]:
        """Rows of this step, by request.

        Args:
            hidden: [num_tokens, hidden_size] of the step.
        """
        if not batch.prompt_logprobs:
            return {}
        results = {}
        for index, req_id in enumerate(step.req_ids):
            wanted = batch.prompt_logprobs.get(req_id)
            if wanted is None:
                continue
            begin, end = step.query_start_loc[index : index + 2].tolist()
            row, first = int(step.rows[index]), int(step.positions[begin])
            num_prompt = int(batch.num_prompt_tokens[row])
            count = min(end - begin, num_prompt - 1 - first)
            if count > 0:
                # The hidden state of position p speaks of the token at p + 1.
                targets = batch.token_ids[row, first + 1 : first + 1 + count]
                results[req_id] = self._rows(hidden[begin : begin + count], targets, wanted)
            if first + end - begin >= num_prompt:
                del batch.prompt_logprobs[req_id]
        return results

    def _rows(self, hidden: Tensor, targets: np.ndarray, wanted: int) -> LogprobsLists:
        num_logprobs = self._vocab_size if wanted == -1 else wanted
        token_ids = torch.from_numpy(targets.astype(np.int64)).to(hidden.device)
        rows = LogprobsLists([], [], [])
        for begin in range(0, len(targets), self._range):
            logits = self._compute_logits(hidden[begin : begin + self._range])
            part = prompt_logprobs(logits, token_ids[begin : begin + self._range], num_logprobs)
            rows.token_ids.extend(part.token_ids)
            rows.logprobs.extend(part.logprobs)
            rows.sampled_ranks.extend(part.sampled_ranks)
        return rows
