# SPDX-License-Identifier: Apache-2.0
"""What model is served and how its numbers are held. Resolved: no "auto" is left here."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

from vllm.exceptions import ConfigError

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One resolved model.

    Attributes:
        model: what the user named: a folder, a .gguf file or a hub id.
        path: the local folder or file that holds it.
        served_model_name: names the server answers to; the first is reported.
        tokenizer: folder, file or hub id of the tokenizer.
        hf_config: the Transformers configuration of the whole model.
        architecture: the class name that the model registry is asked for.
        dtype: dtype of weights and activations.
        max_model_len: longest prompt plus output, in tokens.
        auto_max_model_len: let the engine lower `max_model_len` to what its KV cache holds.
        seed: seed of requests that bring none of their own; None draws one per request.
        vocab_size: rows of the embedding; every token id is below it.
        generation_defaults: sampling fields taken from the model's generation config.
        eos_token_ids: ids that end generation unless `ignore_eos`.
        max_logprobs: bound on `logprobs` and `prompt_logprobs`; -1 is no bound.
        logprobs_mode: whether logprobs are taken before or after penalties and masks.
        skip_tokenizer_init: serve token ids only; text is refused.
        trust_remote_code: consent to run code that comes with the checkpoint.
        chat_template: the server's own template text, or None for the tokenizer's.
    """

    model: str
    path: Path
    served_model_name: tuple[str, ...]
    tokenizer: str
    hf_config: "PretrainedConfig"
    architecture: str
    dtype: "torch.dtype"
    max_model_len: int
    vocab_size: int
    auto_max_model_len: bool = False
    seed: int | None = None
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    revision: str | None = None
    tokenizer_revision: str | None = None
    tokenizer_mode: str = "auto"
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if self.max_model_len < 1:
            raise ConfigError(f"max_model_len={self.max_model_len}: pass at least 1")
        if self.max_logprobs < -1:
            raise ConfigError(f"max_logprobs={self.max_logprobs}: pass -1 (no bound) or more")

    @property
    def hf_text_config(self) -> "PretrainedConfig":
        """The configuration of the text decoder."""
        return self.hf_config.get_text_config()
