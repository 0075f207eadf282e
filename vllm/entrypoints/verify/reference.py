# SPDX-License-Identifier: Apache-2.0
"""Transformers' half: the same token ids through its own model, in eager attention.

Knows nothing of the engine; code that comes with a checkpoint runs only with consent.
"""

import gc
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.verify.gguf_reference import gguf_bytes, load_gguf
from vllm.exceptions import ConfigError, ModelLoadError, VLLMError
from vllm.transformers_utils.gguf_utils import is_gguf

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

# Rows of logits that are brought to logprobs at a time: a vocabulary may have 256k tokens.
_ROWS_AT_A_TIME = 128
_MAX_HEADER_BYTES = 100_000_000  # as the format itself allows
# What model code that meets a configuration or an input that it was not written for raises.
_MODEL_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """Which model to load, and how.

    Attributes:
        path: folder of the checkpoint, or a GGUF file.
        revision: of code that comes with it.
        trust_remote_code: consent to run such code.
        hf_overrides: fields of the configuration to replace.
    """

    path: Path
    revision: str | None = None
    trust_remote_code: bool = False
    hf_overrides: Mapping[str, Any] | None = None

    def load(self, dtype: str) -> Any:
        """The model in `dtype`, on the CPU.

        Raises:
            ConfigError: Transformers cannot load it.
        """
        from transformers.utils.logging import disable_progress_bar

        from vllm.transformers_utils.config import get_config

        config = get_config(self.path, self.revision, self.trust_remote_code, self.hf_overrides)
        disable_progress_bar()
        try:
            if is_gguf(self.path):
                return load_gguf(self.path, config, dtype).eval()
            return self._load_safetensors(config, dtype).eval()
        except VLLMError:
            raise
        except _MODEL_ERRORS as error:
            raise ConfigError(
                f"Transformers cannot load this model, so there is no reference: {_one_line(error)}"
            ) from error

    def _load_safetensors(self, config: "PretrainedConfig", dtype: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(
            self.path,
            config=config,
            dtype=getattr(torch, dtype),
            attn_implementation="eager",
            trust_remote_code=self.trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask of the reference about one prompt.

    Attributes:
        token_ids: prompt and output.
        wanted: for each token but the first, the ids whose logprobs are wanted.
    """

    token_ids: list[int]
    wanted: Sequence[Sequence[int]]


def score(
    reference: ReferenceModel, dtype: str, questions: Sequence[Question], num_likeliest: int
) -> list[list[dict[int, float]]]:
    """Load the model, ask, and let it go.

    Args:
        reference: the model.
        dtype: to compute in.
        questions: one per prompt.
        num_likeliest: ids per token to answer about beside the wanted ones.

    Returns:
        Per question and token but the first: logprobs of the wanted and the likeliest ids.

    Raises:
        ConfigError: Transformers cannot load or run it.
    """
    model = reference.load(dtype)
    try:
        return [_answer(model, question, num_likeliest) for question in questions]
    except _MODEL_ERRORS as error:
        raise ConfigError(
            f"Transformers cannot run this model, so there is no reference: {_one_line(error)}"
        ) from error
    finally:
        del model
        gc.collect()


def _answer(model: Any, question: Question, num_likeliest: int) -> list[dict[int, float]]:
    import torch

    ids = torch.tensor([question.token_ids], device=model.device)
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0, :-1]
    return list(_rows(logits, question.wanted, num_likeliest))


def needed_bytes(path: Path) -> int:
    """What the weights take in float32, from the headers of the files.

    Packed weights are counted as two values a byte.

    Raises:
        ConfigError: there are none.
        ModelLoadError: a file is damaged.
    """
    if is_gguf(path):
        return gguf_bytes(path)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{path.name} holds no safetensors file for the reference to read")
    return sum(_float32_bytes(file) for file in files)


def _rows(
    logits: "torch.Tensor", wanted: Sequence[Sequence[int]], num_likeliest: int
) -> Iterator[dict[int, float]]:
    import torch

    for start in range(0, len(logits), _ROWS_AT_A_TIME):
        logprobs = torch.log_softmax(logits[start : start + _ROWS_AT_A_TIME].float(), dim=-1)
        likeliest = logprobs.topk(min(num_likeliest, logprobs.shape[1])).indices.tolist()
        for row, top, ids in zip(logprobs, likeliest, wanted[start:], strict=False):
            every = sorted({*top, *ids})
            yield dict(zip(every, row[every].tolist(), strict=True))


def _float32_bytes(path: Path) -> int:
    """Bytes of a safetensors file's tensors as float32.

    Source: the safetensors format: eight bytes of length, then a JSON header.
    """
    header = _safetensors_header(path)
    total = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        per_value = {"F64": 8.0, "F32": 4.0, "BF16": 2.0, "F16": 2.0, "U8": 0.5}
        total += int((end - start) / per_value.get(entry["dtype"], 1.0) * 4)
    return total


def _safetensors_header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header: dict[str, Any] = json.loads(file.read(min(size, _MAX_HEADER_BYTES)))
    except (OSError, struct.error, ValueError) as error:
        raise ModelLoadError(f"{path.name} is damaged: its header cannot be read") from error
    return header


def _one_line(error: Exception) -> str:
    """An error of other people's code, without the lines that only a trace needs."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
