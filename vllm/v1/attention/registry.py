# SPDX-License-Identifier: Apache-2.0
"""Names of the attention backends and where their classes are; imported on use."""

import importlib

from vllm.exceptions import ConfigError
from vllm.v1.attention.backend import AttentionBackend

BACKENDS: dict[str, str] = {
    "TORCH_REF": "vllm.v1.attention.backends.torch_ref:TorchRefBackend",
}


def register_backend(name: str, qualname: str) -> None:
    """Add a backend, or put another class behind a name.

    Args:
        name: as users write it; stored in upper case.
        qualname: "module:Class".
    """
    BACKENDS[name.upper()] = qualname


def resolve_backend(name: str) -> type[AttentionBackend]:
    """The class behind `name`, in any case.

    Raises:
        ConfigError: there is no such backend.
    """
    qualname = BACKENDS.get(name.upper())
    if qualname is None:
        raise ConfigError(
            f"attention_backend={name!r} is not known; pass one of {', '.join(sorted(BACKENDS))}"
        )
    module_name, _, class_name = qualname.partition(":")
    backend: type[AttentionBackend] = getattr(importlib.import_module(module_name), class_name)
    return backend
