# SPDX-License-Identifier: Apache-2.0
"""A tiny byte-level tokenizer, and outputs drawn at random from what a grammar allows."""

import functools
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vllm.config import StructuredOutputsConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine.messages import EngineCoreRequest
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

NUM_TOKENS = 300
VOCAB_SIZE = 333  # the model's: longer than the tokenizer, and no multiple of 32
EOS = 0


@functools.cache
def make_tokenizer() -> Any:
    """Bytes, a few merges of JSON text, and an end token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<eos>"],
        show_progress=False,
    )
    words = "name value number flag list items string object array integer first second third"
    text = [f'{{"{word}": "value", "number": 12, "flag": true}}' for word in words.split()] * 20
    tokenizer.train_from_iterator(text, trainer)
    assert tokenizer.get_vocab_size() == NUM_TOKENS
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def make_manager(vocab_size: int = VOCAB_SIZE, **limits: Any) -> StructuredOutputManager:
    return StructuredOutputManager(vocab_size, make_tokenizer, StructuredOutputsConfig(**limits))


def params_of(**grammar: Any) -> SamplingParams:
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(**grammar), seed=0, max_tokens=100
    )
    params.eos_token_ids = [EOS]
    return params


def make_request(request_id: str = "a", **grammar: Any) -> Request:
    return Request(
        EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=[1],
            sampling_params=params_of(**grammar),
            arrival_time=0.0,
        )
    )


def start(manager: StructuredOutputManager, request: Request) -> None:
    """Compile the request's grammar and wait for it."""
    manager.validate(request.sampling_params, make_tokenizer())
    manager.grammar_init(request)
    assert manager.is_ready(request)


def allowed_ids(manager: StructuredOutputManager, request: Request) -> list[int]:
    output = manager.grammar_bitmask([request])
    assert output is not None and output.req_ids == [request.request_id]
    bits = np.unpackbits(output.bitmask.view(np.uint8), bitorder="little")
    ids: list[int] = np.nonzero(bits)[0].tolist()
    return ids


def random_output(
    manager: StructuredOutputManager,
    request: Request,
    rng: np.random.Generator,
    *,
    max_tokens: int = 400,
    keep_up: int = 30,
) -> str | None:
    """Draw until the grammar ends, any allowed token as likely as another; None if cut off.

    After `keep_up` tokens closing ones are taken where there are any, so that outputs end.
    """
    token_ids: list[int] = []
    for step in range(max_tokens):
        if manager.is_terminated(request):
            break
        ids = allowed_ids(manager, request)
        assert ids, "the grammar allows nothing and has not ended"
        assert max(ids) < NUM_TOKENS
        closing = [i for i in ids if i == EOS or make_tokenizer().decode([i]) in _CLOSING]
        pool = closing if closing and step >= keep_up else ids
        token_id = int(rng.choice(pool))
        assert manager.accept_tokens(request, [token_id])
        if token_id == EOS:
            assert manager.is_terminated(request)
            break
        token_ids.append(token_id)
    else:
        return None
    text: str = bytes_of(token_ids).decode("utf-8")  # strict: a split character would raise
    return text


_CLOSING = ('"', "}", "]")


def bytes_of(token_ids: list[int]) -> bytes:
    """The exact bytes of byte-level tokens."""
    characters = "".join(make_tokenizer().convert_ids_to_tokens(token_ids))
    return bytes(_byte_of()[c] for c in characters)


@functools.cache
def _byte_of() -> dict[str, int]:
    """Byte by its stand-in character, found by asking the tokenizer's own alphabet."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    table = {chr(b): b for b in printable}
    table |= {chr(256 + i): b for i, b in enumerate(others)}
    assert set(table) == set(pre_tokenizers.ByteLevel.alphabet())
    return table
