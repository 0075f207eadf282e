# SPDX-License-Identifier: Apache-2.0
"""A request for n outputs is n requests to the core; here they part and come together again."""

import hashlib

from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams


def derive_seed(seed: int, index: int) -> int:
    """Seed of output `index`; the first has the request's own, the others are unrelated to it."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def child_id(request_id: str, index: int, n: int) -> str:
    """Id that the core knows output `index` by."""
    return request_id if n == 1 else f"{index}_{request_id}"


def child_params(params: SamplingParams, index: int) -> SamplingParams:
    """Parameters of output `index`; only the first computes prompt logprobs."""
    if params.n == 1:
        return params
    child = params.clone()
    child.n = 1
    assert params.seed is not None, "the seed is resolved before a request is split"
    child.seed = derive_seed(params.seed, index)
    if index > 0:
        child.prompt_logprobs = None
    return child


class ParentRequest:
    """Gathers the outputs of one prompt.

    Args:
        n: outputs there will be.
        output_kind: what each message to the caller carries.
    """

    def __init__(self, n: int, output_kind: RequestOutputKind) -> None:
        self._kind = output_kind
        self._outputs: dict[int, CompletionOutput] = {}
        self._unfinished = set(range(n))

    @property
    def finished(self) -> bool:
        """Whether every output has ended."""
        return not self._unfinished

    def merge(self, output: CompletionOutput) -> list[CompletionOutput]:
        """Take news of one output; what the caller is told now, in order of index."""
        if output.finish_reason is not None:
            self._unfinished.discard(output.index)
        if self._kind is RequestOutputKind.DELTA:
            return [output]
        self._outputs[output.index] = output
        if self._kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return []
        return [self._outputs[i] for i in sorted(self._outputs)]
