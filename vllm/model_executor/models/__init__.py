# SPDX-License-Identifier: Apache-2.0
"""Models the engine runs natively; each is one file and one line in the registry."""

from vllm.model_executor.models.registry import ModelRegistry

__all__ = ["ModelRegistry"]
