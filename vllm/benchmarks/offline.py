# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks in this process share: the engine and random prompts."""

import argparse
import random
from typing import TYPE_CHECKING, Any

from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import TokensPrompt

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the engine."""
    EngineArgs.add_cli_args(parser)


def make_llm(args: argparse.Namespace) -> "LLM":
    """The engine that the options describe."""
    import dataclasses

    from vllm import LLM

    engine_args = EngineArgs.from_cli_args(args)
    values: dict[str, Any] = {
        f.name: getattr(engine_args, f.name) for f in dataclasses.fields(engine_args)
    }
    return LLM(**values)


def random_prompts(llm: "LLM", count: int, length: int, seed: int) -> list[TokensPrompt]:
    """Prompts of random token ids; equal seeds give equal prompts."""
    vocab_size = llm.llm_engine.model_config.vocab_size
    draw = random.Random(seed)
    return [
        {"prompt_token_ids": [draw.randrange(vocab_size) for _ in range(length)]}
        for _ in range(count)
    ]


def fixed_length(num_tokens: int) -> "SamplingParams":
    """Greedy sampling of exactly `num_tokens` tokens."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
