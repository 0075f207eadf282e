# SPDX-License-Identifier: Apache-2.0
"""A Transformers model from its configuration alone: parameters on meta, buffers real.

Owns how the model is built and which parameters stay fp32, not what becomes of it. No parameter
takes memory here: layers are replaced first, and only what is left is allocated. Buffers (rotary
frequencies and the like) are computed by the model's own constructors and kept.
"""

import copy
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from vllm.exceptions import ConfigError


def build_on_meta(config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The causal language model that `config` describes, in evaluation mode.

    Args:
        config: a Transformers configuration; it is copied, not changed.
        dtype: dtype of the parameters.

    Raises:
        ConfigError: Transformers has no causal language model for it, or cannot build it.
    """
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"  # no kernel of Transformers' own is looked for
    try:
        with no_init_weights(), parameters_on_meta(), _EmptyOnMeta():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (ValueError, TypeError, AttributeError, KeyError, ImportError, RuntimeError) as error:
        raise ConfigError(
            f"model_impl='transformers': {type(config).__name__} gives no causal language model "
            f"in the installed Transformers: {error}"
        ) from error
    keep_in_fp32(model)
    return model.eval().requires_grad_(False)


def keep_in_fp32(model: PreTrainedModel) -> None:
    """Make fp32 of every parameter that the model says must be, whatever its dtype."""
    patterns = model._keep_in_fp32_modules_strict or ()
    made: dict[int, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        for name, param in module._parameters.items():
            if param is None or not param.is_floating_point() or param.dtype == torch.float32:
                continue
            if is_named(f"{module_name}.{name}", patterns):
                if id(param) not in made:
                    made[id(param)] = nn.Parameter(param.float(), requires_grad=False)
                    vars(made[id(param)]).update(vars(param))
                module._parameters[name] = made[id(param)]


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of Transformers' patterns, in which * is any text, is found in `name`."""
    return any(re.search(re.escape(p).replace(r"\*", ".*"), name) for p in patterns)


class _EmptyOnMeta(TorchFunctionMode):
    """Puts `torch.empty` on the meta device: constructors make large parameters with it.

    Values that matter (buffers) never come from it.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Put every parameter that is registered inside the block on the meta device."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            attributes = vars(param)
            param = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            vars(param).update(attributes)
        register(module, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextmanager
def buffers_on_meta(model: nn.Module) -> Iterator[None]:
    """Show the model's buffers on the meta device inside the block, for a pass without values."""
    saved: list[tuple[nn.Module, str, torch.Tensor]] = []
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                saved.append((module, name, buffer))
                module._buffers[name] = buffer.to("meta")
    try:
        yield
    finally:
        for module, name, buffer in saved:
            module._buffers[name] = buffer
