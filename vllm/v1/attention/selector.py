# SPDX-License-Identifier: Apache-2.0
"""The choice of a backend for a layer: one rule on every platform.

Each candidate's declared limits are checked against what the layer asks. A backend named by the
user must pass; without a name the first of the platform's order that passes is taken. Runs while
the model is built, before any weight is read.
"""

import logging

from vllm.exceptions import ConfigError
from vllm.logger import init_logger, log_once
from vllm.platforms import current_platform
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import AttentionBackend, AttentionSelectorConfig
from vllm.v1.attention.registry import BACKENDS, resolve_backend

logger = init_logger(__name__)


def get_attn_backend(
    config: AttentionSelectorConfig,
    *,
    backend: str | type[AttentionBackend] | None = None,
    platform: Platform | None = None,
) -> type[AttentionBackend]:
    """Choose the backend of one layer.

    Args:
        config: what the layer asks.
        backend: name the user gave or class the model gave, or None to choose.
        platform: None is the one this process runs on.

    Raises:
        ConfigError: the named backend, or every candidate, lacks something; with all reasons.
    """
    platform = platform or current_platform()
    if backend is not None:
        return _named(config, backend, platform)
    refused: dict[str, list[str]] = {}
    for name in platform.get_attn_backend_priority():
        candidate = resolve_backend(name)
        reasons = candidate.validate_configuration(config, device_type=platform.device_type)
        if not reasons:
            passed_over = f"; passed over {_join(refused)}" if refused else ""
            log_once(logger, logging.INFO, f"Attention backend: {name}{passed_over}")
            return candidate
        refused[name] = reasons
    raise ConfigError(
        f"no attention backend of platform {platform.name} can serve {config}: {_join(refused)}"
    )


def _named(
    config: AttentionSelectorConfig, backend: str | type[AttentionBackend], platform: Platform
) -> type[AttentionBackend]:
    chosen = resolve_backend(backend) if isinstance(backend, str) else backend
    reasons = chosen.validate_configuration(config, device_type=platform.device_type)
    if reasons:
        others = [
            other
            for other in BACKENDS
            if not resolve_backend(other).validate_configuration(
                config, device_type=platform.device_type
            )
        ]
        raise ConfigError(
            f"attention_backend={chosen.get_name()!r} cannot serve this model: "
            f"{'; '.join(reasons)}. These can: {', '.join(others) or 'none'}; or leave the choice "
            "to the engine"
        )
    log_once(logger, logging.INFO, f"Attention backend: {chosen.get_name()} (as asked)")
    return chosen


def _join(refused: dict[str, list[str]]) -> str:
    return "; ".join(f"{name} ({', '.join(reasons)})" for name, reasons in refused.items())
