# SPDX-License-Identifier: Apache-2.0
"""The default model in Transformers, eager and in fp64: what its logprobs should be.

Not in fp32: with the matrix products of some CPUs Transformers' own fp32 logprobs are 1.1e-4 from
its fp64 ones, so that a difference to fp32 would mostly measure the yardstick.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from vllm.model_executor.model_loader.gguf_loader import gguf_weights_iterator
from vllm.outputs import RequestOutput
from vllm.transformers_utils.config import get_config

_NUM_KEPT = 64
_ROWS_AT_ONCE = 256


class Reference:
    """Logprobs of sequences: of each next token, and of the likeliest tokens at each position.

    Sequences are kept, so that the same one in another run costs nothing; of each position only
    what an engine asked for up to 20 logprobs can rightly return, since whole rows of 49,152
    would take a gigabyte.

    Args:
        model_path: the model's GGUF file; its tensors are unpacked by the engine's own reader.
    """

    def __init__(self, model_path: str) -> None:
        config = get_config(model_path)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        weights = {w.name: w.tensor for w in gguf_weights_iterator(Path(model_path), torch.float32)}
        missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
        assert not unexpected and set(missing) <= {"lm_head.weight"}
        model.tie_weights()
        self._single = model.eval()
        self._double = copy.deepcopy(self._single).double()
        self._rows: dict[tuple[int, ...], list[dict[int, float]]] = {}

    def differences(self, output: RequestOutput, *, with_prompt: bool) -> list[float]:
        """How far each logprob in `output` is from what it should be.

        Args:
            output: with 20 logprobs or fewer.
            with_prompt: it has prompt logprobs, which are compared too.
        """
        prompt, choice = output.prompt_token_ids, output.outputs[0]
        assert prompt is not None and choice.logprobs is not None
        assert len(choice.logprobs) == len(choice.token_ids) > 0
        want = self._rows_of([*prompt, *choice.token_ids])
        pairs = list(zip(want[len(prompt) - 1 :], choice.logprobs, strict=False))
        if with_prompt:
            told = output.prompt_logprobs
            assert told is not None and len(told) == len(prompt) and told[0] is None
            pairs += [(row, given) for row, given in zip(want, told[1:], strict=False) if given]
            assert len(pairs) == len(choice.token_ids) + len(prompt) - 1
        # A token that the reference did not keep is none of its 64 likeliest: KeyError.
        return [
            abs(given.logprob - row[token_id])
            for row, position in pairs
            for token_id, given in position.items()
        ]

    def rounding(self, output: RequestOutput) -> float:
        """The largest error that Transformers itself makes in fp32 on the sequence of `output`."""
        assert output.prompt_token_ids is not None
        token_ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        single = _logprobs(self._single, token_ids, keep=2 * _NUM_KEPT)
        return max(
            abs(logprob - rounded[token_id])
            for exact, rounded in zip(self._rows_of(token_ids), single, strict=True)
            for token_id, logprob in exact.items()
            if token_id in rounded
        )

    def _rows_of(self, token_ids: list[int]) -> list[dict[int, float]]:
        key = tuple(token_ids)
        if key not in self._rows:
            self._rows[key] = _logprobs(self._double, token_ids, keep=_NUM_KEPT)
        return self._rows[key]


@torch.inference_mode()
def _logprobs(model: Any, token_ids: list[int], keep: int) -> list[dict[int, float]]:
    """At each position, logprobs by id of the token after it and of the `keep` likeliest."""
    hidden: Tensor = model.model(torch.tensor([token_ids])).last_hidden_state[0]
    following = [*token_ids[1:], 0]
    rows: list[dict[int, float]] = []
    for start in range(0, len(hidden), _ROWS_AT_ONCE):
        logprobs = model.lm_head(hidden[start : start + _ROWS_AT_ONCE]).log_softmax(-1)
        values, indices = logprobs.topk(keep)
        for i, (row, kept) in enumerate(zip(indices.tolist(), values.tolist(), strict=True)):
            next_id = following[start + i]
            own = {next_id: float(logprobs[i, next_id])}
            rows.append(own | dict(zip(row, kept, strict=True)))
    return rows
