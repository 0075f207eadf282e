# SPDX-License-Identifier: Apache-2.0
"""Writes one model type's tiny checkpoint and what Transformers says about it.

Weights are random but of order one, so that nothing a model applies can be dropped unseen. The
reference is Transformers in fp32 and eager attention, read back from the checkpoint itself.
"""

import hashlib
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.transformers.sweep.overrides import OVERRIDES
from tests.models.transformers.sweep.shrink import VOCAB_SIZE, shrink

# On both sides of the window and of the block, and longer than a step.
PROMPT_LENGTHS = (5, 8, 9, 23, 40)
NUM_OUTPUTS = 8
# Ids below are special: some models count the positions of padding in another way.
FIRST_ORDINARY_TOKEN = 4
_REFERENCE = "reference.pt"
_SPREAD = 2.0


class NotBuiltError(Exception):
    """Transformers itself cannot build, save, read back or run the tiny model."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the engine is compared with.

    Attributes:
        architecture: the model's class.
        prompts: token ids.
        outputs: the greedy continuation of each prompt, `NUM_OUTPUTS` tokens.
        logprobs: per prompt, after each token of prompt and output: [length + outputs, V], fp32.
        is_causal: whether a token's logprobs depend on none that follow it.
    """

    architecture: str
    prompts: list[list[int]]
    outputs: list[list[int]]
    logprobs: list[Tensor]
    is_causal: bool


def prepare(model_type: str, cache_dir: Path) -> tuple[Path, Reference]:
    """The checkpoint of `model_type` and its reference, made if they are not in `cache_dir`.

    Raises:
        NotBuiltError: Transformers cannot do it, and why.
    """
    try:
        config = make_config(model_type)
        path = cache_dir / f"{model_type}-{_fingerprint(config)}"
        if not (path / _REFERENCE).is_file():
            _write_checkpoint(model_type, config, path)
            torch.save(_reference(path), path / _REFERENCE)
        return path, torch.load(path / _REFERENCE, weights_only=False)
    except NotBuiltError:
        raise
    except Exception as error:
        # Whatever Transformers raises about its own model is a finding, not a fault of ours.
        raise NotBuiltError(f"{type(error).__name__}: {error}") from error


def prepare_config(model_type: str, cache_dir: Path) -> tuple[Path, str]:
    """A folder with nothing but the configuration, and the name of the model's class.

    Raises:
        NotBuiltError: Transformers cannot make or write it, and why.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    path = cache_dir / f"{model_type}-config"
    try:
        config = make_config(model_type)
        config.architectures = [architecture]
        config.save_pretrained(path)
    except Exception as error:
        raise NotBuiltError(f"{type(error).__name__}: {error}") from error
    return path, architecture


def make_config(model_type: str) -> Any:
    """The tiny configuration."""
    from transformers import CONFIG_MAPPING

    config = shrink(CONFIG_MAPPING[model_type], OVERRIDES.get(model_type, {}))
    config.dtype = "float32"
    return config


def _fingerprint(config: Any) -> str:
    """Changes with the configuration and with how checkpoints are made."""
    import transformers

    content = json.dumps(config.to_dict(), sort_keys=True, default=str)
    recipe = Path(__file__).read_text(encoding="utf-8")
    return hashlib.sha256((transformers.__version__ + content + recipe).encode()).hexdigest()[:12]


def _write_checkpoint(model_type: str, config: Any, path: Path) -> None:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)  # Some classes draw buffers of their own.
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model = model.float()
    randomize(model, seed=zlib.crc32(model_type.encode()))
    prompt = _prompts()[-1]
    _set_spread(model, prompt)
    wanted = _logprobs(model, prompt)
    if not torch.isfinite(wanted).all():
        raise NotBuiltError("its logits are not finite")
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    difference = (_logprobs(_load(path), prompt) - wanted).abs().max().item()
    if not difference < 1e-5:
        raise NotBuiltError(
            f"Transformers reads back another model than it wrote: logprobs differ by "
            f"{difference:.1e}"
        )


def randomize(model: nn.Module, seed: int) -> None:
    """Draw all weights anew, at a scale that keeps activations of order one."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *_drawn_buffers(model)):
            noise = torch.randn(tensor.shape, generator=generator)
            if "sink" in name and tensor.dim() == 1:
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 7 - 3)
            elif name.endswith("bias"):
                tensor.copy_(noise * 0.5)
            elif tensor.dim() < 2:
                tensor.add_(noise * 0.3)  # Around what it is: 1 or, in some norms, 0.
            elif id(tensor) in embeddings:
                tensor.copy_(noise)
            else:
                tensor.copy_(noise * 1.5 / math.sqrt(_fan_in(tensor)))


def _drawn_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers that a checkpoint holds and a fresh model leaves at zero, such as router biases."""
    saved = model.state_dict().keys()
    return [
        (name, buffer)
        for name, buffer in model.named_buffers()
        if name in saved and buffer.is_floating_point() and not buffer.any()
    ]


def _fan_in(weight: Tensor) -> int:
    if weight.dim() == 3:  # Experts; which axis is the input differs between models.
        return min(weight.shape[1:])
    return math.prod(weight.shape[1:])


def _set_spread(model: Any, prompt: list[int]) -> None:
    """Scale the head so that no token is near certain, which would hide differences."""
    head = model.get_output_embeddings()
    if head is None or not hasattr(head, "weight"):
        return
    for _ in range(3):
        spread = _logits(model, prompt).std(-1).mean().item()
        if not math.isfinite(spread) or 0.5 * _SPREAD < spread < 1.5 * _SPREAD:
            return
        with torch.no_grad():
            head.weight.mul_(min(max(_SPREAD / spread, 0.02), 50.0))


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randint(FIRST_ORDINARY_TOKEN, VOCAB_SIZE, (n,), generator=generator).tolist()
        for n in PROMPT_LENGTHS
    ]


def _load(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()


def _reference(path: Path) -> Reference:
    model = _load(path)
    prompts, outputs, logprobs, is_causal = _prompts(), [], [], True
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(NUM_OUTPUTS):
            ordinary = _logits(model, ids)[-1, FIRST_ORDINARY_TOKEN:]
            ids.append(FIRST_ORDINARY_TOKEN + int(ordinary.argmax()))
        full = _logprobs(model, ids)
        is_causal &= (full[: len(prompt)] - _logprobs(model, prompt)).abs().max().item() < 1e-3
        outputs.append(ids[len(prompt) :])
        logprobs.append(full)
    return Reference(type(model).__name__, prompts, outputs, logprobs, is_causal)


def _logits(model: Any, token_ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    if logits.shape[0] != len(token_ids):
        raise NotBuiltError(f"it gives logits of {logits.shape[0]} of {len(token_ids)} tokens")
    return logits.float()


def _logprobs(model: Any, token_ids: list[int]) -> Tensor:
    return torch.log_softmax(_logits(model, token_ids), dim=-1)
