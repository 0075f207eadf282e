# SPDX-License-Identifier: Apache-2.0
"""The reference for a GGUF file: Transformers' model, filled by Transformers' own GGUF reader.

Names, order and unpacking of the weights are thus not the engine's. The configuration is: that of
Transformers leaves out windows and rotary factors of files, and the reference would be the wrong
one.
"""

import contextlib
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.exceptions import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# Values exist once as they come from the file, all of them, and once in the model.
_FLOAT32_COPIES = 2


def load_gguf(path: Path, config: "PretrainedConfig", dtype: str) -> Any:
    """The model in `dtype`, on the CPU.

    Raises:
        ConfigError: the file holds other tensors than the model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, dtype), attn_implementation="eager"
    )
    tensors = _tensors(path, model)
    # Copied into the model, and so rounded to its dtype.
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    tied = set(model.all_tied_weights_keys)
    wrong = sorted({*unexpected, *(name for name in missing if name not in tied)})
    if wrong:
        raise ConfigError(
            f"Transformers reads other tensors from {path.name} than the model has "
            f"({', '.join(wrong[:3])}), so there is no reference"
        )
    model.tie_weights()
    return model


def gguf_bytes(path: Path) -> int:
    """What loading takes, in float32.

    Raises:
        ModelLoadError: the file is damaged.
    """
    from vllm.transformers_utils.gguf_utils import GGUFFile

    values = sum(math.prod(tensor.shape) for tensor in GGUFFile(path).tensors.values())
    return _FLOAT32_COPIES * 4 * values


def _tensors(path: Path, model: Any) -> dict[str, Any]:
    """All tensors by their Transformers names, in float32."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with contextlib.redirect_stderr(io.StringIO()):  # A progress bar without a switch.
        found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    tensors: dict[str, Any] = found["tensors"]
    return tensors
