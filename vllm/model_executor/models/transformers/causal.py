# SPDX-License-Identifier: Apache-2.0
"""The output head of a Transformers model: its own wrapper's code, applied to chosen rows.

Whatever a wrapper does after the decoder (scale or cap logits, scale hidden states, add a bias,
norm once more) happens because the wrapper itself runs, over hidden states that are handed to it
in the decoder's place.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from vllm.exceptions import ConfigError
from vllm.model_executor.models.transformers.base import Base


class _DecoderOutput(BaseModelOutput):  # type: ignore[misc]
    """Hidden states and nothing else, whatever further fields a wrapper passes on."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _HiddenStates(nn.Module):
    """Stands in the decoder's place and returns the hidden states that were handed in."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        vars(self)["_decoder"] = decoder  # no child: a head holds no layers

    def forward(self, *_: Any, inputs_embeds: Tensor | None = None, **__: Any) -> _DecoderOutput:
        """[1, N, hidden_size], unchanged."""
        return _DecoderOutput(last_hidden_state=inputs_embeds)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["_decoder"], name)  # such as its configuration


def _without(module: nn.Module, path: list[str], stand_in: nn.Module) -> nn.Module:
    """A shallow copy of `module` in which the descendant at `path` is `stand_in`."""
    twin: nn.Module = copy.copy(module)
    twin._modules = dict(module._modules)
    child = module.get_submodule(path[0])
    twin._modules[path[0]] = _without(child, path[1:], stand_in) if path[1:] else stand_in
    return twin


class CausalMixin(Base):
    """Hidden states to logits."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        vars(self)["_head"] = self._make_head()
        self._check_head()

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, vocab_size], fp32."""
        output = vars(self)["_head"](inputs_embeds=hidden_states.unsqueeze(0), use_cache=False)
        logits: Tensor = output.logits
        return logits.squeeze(0).float()

    def _make_head(self) -> nn.Module:
        """The wrapper with the decoder taken out; everything else is the same objects."""
        model, decoder = self.hf_model, self.hf_decoder
        name = next(n for n, m in model.named_modules() if m is decoder)
        return _without(model, name.split("."), _HiddenStates(decoder))

    def _check_head(self) -> None:
        """The head must give a row of logits for each row it is given."""
        hidden = torch.zeros((2, self.config.hidden_size), dtype=self.dtype)
        name = type(self.hf_model).__name__
        try:
            with torch.no_grad():
                logits = self.compute_logits(hidden)
        except Exception as error:  # whatever the wrapper's own code raises; the load ends here
            raise ConfigError(
                f"{name}: its output head needs more than hidden states: "
                f"{type(error).__name__}: {error}"
            ) from error
        expected = (2, self.config.vocab_size)
        if tuple(logits.shape) != expected:
            raise ConfigError(
                f"{name}: its output head gives logits of shape {tuple(logits.shape)}, expected "
                f"{expected}"
            )
