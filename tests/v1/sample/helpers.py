# SPDX-License-Identifier: Apache-2.0
"""A sampler over hand-made logits, and what sampling means in plain terms."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vllm.config.model import LogprobsMode
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.sampler import Sampler, SamplerOutput
from vllm.v1.sample.states import SamplingStates

CPU = torch.device("cpu")


def sampling(**fields: Any) -> SamplingParams:
    """Parameters as they reach the worker: with a seed and what the front end resolves."""
    resolved = {k: fields.pop(k) for k in ("eos_token_ids", "bad_words_token_ids") if k in fields}
    params = SamplingParams(**({"seed": 0} | fields))
    for name, value in resolved.items():
        setattr(params, name, value)
    return params


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    *,
    prompts: Sequence[list[int]] | None = None,
    outputs: Sequence[list[int]] | None = None,
    mode: LogprobsMode = "raw_logprobs",
    bitmask: Tensor | None = None,
) -> SamplerOutput:
    """One step over `logits` [N, V], which stay as they are."""
    states = SamplingStates(len(params), logits.shape[1], CPU)
    for row, p in enumerate(params):
        prompt = prompts[row] if prompts else []
        states.add_request(row, p, prompt, outputs[row] if outputs else [])
    metadata = states.gather(list(range(len(params))))
    return Sampler(mode)(logits.clone(), metadata, bitmask)


def processed(logits: Tensor, params: SamplingParams, **state: Any) -> np.ndarray:
    """One row's logits as the draw sees them: [V], through the sampler's processed mode."""
    asked = params.clone()
    asked.eos_token_ids, asked.bad_words_token_ids = (
        params.eos_token_ids,
        params.bad_words_token_ids,
    )
    asked.logprobs = -1
    per_row = {name: [value] for name, value in state.items() if name != "bitmask"}
    result = sample(
        logits[None], [asked], mode="processed_logits", bitmask=state.get("bitmask"), **per_row
    )
    assert not result.errors, result.errors
    lists = result.logprobs[0]
    assert lists is not None
    values = np.empty(len(logits))
    values[lists.token_ids[0][1:]] = lists.logprobs[0][1:]
    return values


def pack(allowed: Sequence[Sequence[int] | None], vocab_size: int) -> Tensor:
    """A bitmask from lists of allowed ids; None leaves a row free."""
    words = np.zeros((len(allowed), (vocab_size + 31) // 32), dtype=np.int32)
    for row, ids in zip(words, allowed, strict=True):
        if ids is None:
            row.fill(-1)
        else:
            bits = np.zeros(len(row) * 32, dtype=np.uint8)
            bits[list(ids)] = 1
            row[:] = np.packbits(bits, bitorder="little").view(np.int32)
    return torch.from_numpy(words)
