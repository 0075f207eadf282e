# SPDX-License-Identifier: Apache-2.0
"""Tiny models on disk, and what Transformers says about them.

Weights are random but of order one: with weights near zero a dropped window, bias or norm would
not show. Everything is a function of the seed.
"""

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

SPECIAL_TOKENS = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
VOCAB_SIZE = 512
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>"
    "{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "a list of numbers: one, two, three, four, five, six, seven, eight, nine, ten",
    'answer = {"name": "value", "count": 12, "items": [1, 2, 3]}',
    "the engine reads a prompt and writes the next token, again and again, until it stops",
    "Überraschung: naïve café, 東京, здравствуй",
)

# Common to all kinds: every number differs from its neighbours so that a mixed-up axis shows.
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}

_ARCHS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"head_dim": 24, "sliding_window": 16}),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": (
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {
            "head_dim": 24,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 2,
        },
    ),
}


def make_tiny_model(
    path: Path,
    arch: str = "llama",
    *,
    dtype: torch.dtype = torch.float32,
    sharded: bool = False,
    tie: bool = True,
    seed: int = 0,
    **config_overrides: Any,
) -> Path:
    """Write a tiny model with tokenizer and generation config into `path`.

    Args:
        path: folder, created if absent.
        arch: "llama", "mistral", "qwen2" or "qwen3"; all but the first have windows of 16.
        dtype: of the weights on disk.
        sharded: several safetensors files and an index instead of one file.
        tie: whether the output head is the embedding; then the file holds no head.
        seed: of the weights.
        **config_overrides: fields of the Transformers configuration.

    Returns:
        `path`.
    """
    import transformers

    config_name, model_name, own = _ARCHS[arch]
    fields = _COMMON | own | {"tie_word_embeddings": tie} | config_overrides
    config = getattr(transformers, config_name)(**fields)
    model = getattr(transformers, model_name)(config)
    randomize(model, seed=seed)
    path.mkdir(parents=True, exist_ok=True)
    size = "60KB" if sharded else "1GB"
    model.to(dtype).save_pretrained(path, max_shard_size=size, safe_serialization=True)
    _write_tokenizer(path, config.vocab_size)
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}
    (path / "generation_config.json").write_text(json.dumps(generation))
    return path


def randomize(model: nn.Module, *, seed: int = 0) -> None:
    """Fill all parameters with values that make every part of a model matter.

    Matrices keep the scale of their input, so that activations stay of order one; norm weights
    are around one and biases around zero, both with a spread that shows.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, param in model.named_parameters():
            noise = torch.randn(param.shape, generator=generator)
            if param.dim() == 1:
                center = 1.0 if "norm" in name else 0.0
                param.copy_(center + 0.3 * noise)
            elif "embed" in name or "lm_head" in name:
                # A head of unit rows would give logits of spread sqrt(hidden), far too sure.
                param.copy_(noise * 2.0 / math.sqrt(param.shape[-1]))
            else:
                param.copy_(noise * 1.5 / math.sqrt(param.shape[-1]))


def random_token_ids(length: int, *, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """Ids of ordinary tokens: no special ones."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(len(SPECIAL_TOKENS), vocab_size, (length,), generator=generator)
    return [int(i) for i in ids]


@functools.lru_cache(maxsize=8)
def load_hf(model_path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The Transformers model in eager attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        model_path, dtype=dtype, attn_implementation="eager", local_files_only=True
    ).eval()


def hf_logprobs(
    model_path: Path, token_ids: Sequence[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Reference logprobs of the token after each of `token_ids`: [n, V], fp32."""
    with torch.no_grad():
        logits = load_hf(model_path, dtype)(torch.tensor([list(token_ids)])).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def _write_tokenizer(path: Path, vocab_size: int) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_train_tokenizer(min(vocab_size, VOCAB_SIZE)),
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(path)


@functools.lru_cache(maxsize=4)
def _train_tokenizer(vocab_size: int) -> Any:
    """Byte-level BPE: ids 0.. are the special tokens, then all 256 bytes, then merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 2, trainer)
    # A begin token in front of each plain text, as Llama's tokenizer has.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
    )
    return tokenizer
