# SPDX-License-Identifier: Apache-2.0
"""Which class runs which architecture: one line a model, imported on first use.

Knows names only; importing this file imports neither torch nor any model.
"""

import importlib
from typing import TYPE_CHECKING

from vllm.exceptions import ConfigError
from vllm.logger import init_logger

if TYPE_CHECKING:
    from torch import nn

logger = init_logger(__name__)

# Runs any decoder that the installed Transformers can build; see `models.transformers`.
TRANSFORMERS_BACKEND = "TransformersForCausalLM"
TRANSFORMERS_MOE_BACKEND = "TransformersMoEForCausalLM"

MODELS: dict[str, tuple[str, str]] = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("mistral", "MistralForCausalLM"),
    "Qwen2ForCausalLM": ("qwen2", "Qwen2ForCausalLM"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),
    TRANSFORMERS_BACKEND: ("transformers", TRANSFORMERS_BACKEND),
    TRANSFORMERS_MOE_BACKEND: ("transformers", TRANSFORMERS_MOE_BACKEND),
}


class _ModelRegistry:
    """In-tree models plus those registered from outside; the latter win."""

    def __init__(self, models: dict[str, tuple[str, str]]) -> None:
        self.MODELS = models
        self._registered: dict[str, type[nn.Module] | str] = {}

    def get_supported_archs(self) -> list[str]:
        """Names of all architectures, sorted."""
        return sorted({*self.MODELS, *self._registered})

    def register_model(self, model_arch: str, model_cls: "type[nn.Module] | str") -> None:
        """Serve `model_arch` with a class from outside the tree.

        Args:
            model_arch: the name in the checkpoint's `architectures`.
            model_cls: the class, or "module:Class" to import it on first use.

        Raises:
            TypeError: `model_arch` is no string, or `model_cls` neither a class nor a string.
            ValueError: the string is not of the form "module:Class".
        """
        if not isinstance(model_arch, str):
            raise TypeError(f"model_arch={model_arch!r}: pass the architecture's name")
        if isinstance(model_cls, str):
            module, _, name = model_cls.partition(":")
            if not module or not name.isidentifier():
                raise ValueError(f'model_cls={model_cls!r}: pass "module:Class"')
        elif not isinstance(model_cls, type):
            raise TypeError(f'model_cls={model_cls!r}: pass a class or "module:Class"')
        if model_arch in self.get_supported_archs():
            logger.warning("Model architecture %s is replaced by %s", model_arch, model_cls)
        self._registered[model_arch] = model_cls

    def resolve_model_cls(self, architecture: str) -> "type[nn.Module]":
        """Import and return the class that runs `architecture`.

        Raises:
            ConfigError: no such architecture, or its class cannot be imported or used.
        """
        model_cls = self._find(architecture)
        missing = [
            name
            for name in ("forward", "compute_logits", "load_weights")
            if not callable(getattr(model_cls, name, None))
        ]
        if missing:
            raise ConfigError(
                f"{model_cls.__name__}, registered for {architecture}, lacks {', '.join(missing)}"
            )
        return model_cls

    def _find(self, architecture: str) -> "type[nn.Module]":
        from torch import nn

        registered = self._registered.get(architecture)
        if isinstance(registered, type):
            found: object = registered
        elif registered is not None:
            found = self._import(architecture, *registered.split(":", 1))
        elif architecture in self.MODELS:
            module, name = self.MODELS[architecture]
            found = self._import(architecture, f"{__package__}.{module}", name)
        else:
            raise ConfigError(
                f"architecture {architecture!r} is not supported; supported are "
                + ", ".join(self.get_supported_archs())
                + "; add one with ModelRegistry.register_model"
            )
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise ConfigError(
                f"{found!r}, registered for {architecture}, is not a subclass of torch.nn.Module"
            )
        return found

    @staticmethod
    def _import(architecture: str, module: str, name: str) -> object:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"architecture {architecture!r}: cannot import {name} from {module}: {error}"
            ) from error


ModelRegistry = _ModelRegistry(MODELS)
