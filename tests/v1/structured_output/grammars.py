# SPDX-License-Identifier: Apache-2.0
"""A byte-level tokenizer made on the spot, requests with a grammar, and a model that knows
nothing: it draws evenly among the tokens a grammar allows."""

import random
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vllm.config import StructuredOutputsConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.messages import EngineCoreRequest
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

EOS, END = 1, 2
PADDED_VOCAB_SIZE = 331  # larger than the tokenizer's, and no multiple of 32
_CORPUS = ['{"name": "value", "list": [1, 2, 3], "flag": true}', "hello world", "東京 😀 naïve"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """300 tokens at most: all bytes, some merges; <s>, </s> and <|end|> are 0, 1 and 2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def make_manager(
    tokenizer: Any, vocab_size: int = PADDED_VOCAB_SIZE, **limits: Any
) -> StructuredOutputManager:
    """A manager with its own caches."""
    return StructuredOutputManager(vocab_size, lambda: tokenizer, StructuredOutputsConfig(**limits))


def make_request(req_id: str = "r", *, grammar: dict[str, Any], **fields: Any) -> Request:
    """A request as the core gets it."""
    params = SamplingParams(
        seed=0, structured_outputs=StructuredOutputsParams(**grammar), max_tokens=500, **fields
    )
    params.eos_token_ids = [EOS]
    return Request(
        EngineCoreRequest(
            request_id=req_id, prompt_token_ids=[5], sampling_params=params, arrival_time=0.0
        )
    )


def start(manager: StructuredOutputManager, request: Request) -> Request:
    """Wait for the grammar, as the scheduler does between steps."""
    import time

    manager.grammar_init(request)
    deadline = time.monotonic() + 30
    while not manager.is_ready(request):
        assert time.monotonic() < deadline, "the grammar is not ready after 30 s"
        time.sleep(0.001)
    return request


def allowed(manager: StructuredOutputManager, request: Request) -> list[int]:
    """Ids the grammar allows now."""
    output = manager.grammar_bitmask([request])
    assert output is not None
    return ids_of(output.bitmask[0])


def ids_of(row: np.ndarray) -> list[int]:
    bits = np.unpackbits(row.copy().view(np.uint8), bitorder="little")
    return np.nonzero(bits)[0].tolist()


def generate(
    manager: StructuredOutputManager, request: Request, rng: random.Random, max_tokens: int = 400
) -> list[int] | None:
    """Tokens without the end token, None if `max_tokens` did not suffice."""
    for _ in range(max_tokens):
        choices = allowed(manager, request)
        assert choices, "the grammar left no token"
        token = rng.choice(choices)
        assert manager.accept_tokens(request, [token])
        request.append_output_token(token)
        if token in request.stop_token_ids:
            return request.output_token_ids[:-1]
        if manager.is_terminated(request):
            return request.output_token_ids
    return None
