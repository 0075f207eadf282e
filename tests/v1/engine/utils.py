# SPDX-License-Identifier: Apache-2.0
"""Front-end parts with a scripted core: what it says is exact."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from tests.detokenizer.utils import piece_tokenizer
from vllm.config import ModelConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.engine.token_text import TokenText

PIECES = ("A", "B", "C", "DEF", "G", "HI", "J", "!")


class AcceptsAll:
    """Stands in for the grammar manager where no grammar is tested."""

    def validate(self, params: SamplingParams, tokenizer: Any) -> None:
        """Accept."""


def make_model_config(**fields: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "model": "scripted",
        "path": Path("."),
        "served_model_name": ("scripted",),
        "tokenizer": "scripted",
        "hf_config": LlamaConfig(),
        "architecture": "LlamaForCausalLM",
        "dtype": torch.float32,
        "max_model_len": 64,
        "vocab_size": len(PIECES) + 3,
        "eos_token_ids": (len(PIECES) + 1,),
    }
    return ModelConfig(**(values | fields))


def make_input_processor(**fields: Any) -> InputProcessor:
    return InputProcessor(make_model_config(**fields), piece_tokenizer(*PIECES), AcceptsAll())


def make_output_processor() -> OutputProcessor:
    return OutputProcessor(TokenText(piece_tokenizer(*PIECES)), log_stats=True)


def make_request(request_id: str = "r", **params: Any) -> EngineCoreRequest:
    values = {"seed": 7, "max_tokens": 32} | params
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=[0, 1],
        sampling_params=SamplingParams(**values),
        arrival_time=0.0,
    )


def outputs(*items: EngineCoreOutput) -> EngineCoreOutputs:
    return EngineCoreOutputs(outputs=list(items))


def token(token_id: int, request_id: str = "r", **fields: Any) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=request_id, new_token_ids=[token_id], **fields)
