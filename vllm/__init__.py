# SPDX-License-Identifier: Apache-2.0
"""An LLM inference and serving engine.

Names are imported on first use, so that `import vllm` costs milliseconds and loads no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vllm.version import __version__

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from vllm.engine.async_llm_engine import AsyncLLMEngine
    from vllm.engine.llm_engine import LLMEngine
    from vllm.entrypoints.llm import LLM
    from vllm.inputs import PromptType, TextPrompt, TokensPrompt
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import SamplingParams

_MODULES = {
    "AsyncEngineArgs": "vllm.engine.arg_utils",
    "AsyncLLMEngine": "vllm.engine.async_llm_engine",
    "CompletionOutput": "vllm.outputs",
    "EngineArgs": "vllm.engine.arg_utils",
    "LLM": "vllm.entrypoints.llm",
    "LLMEngine": "vllm.engine.llm_engine",
    "ModelRegistry": "vllm.model_executor.models.registry",
    "PromptType": "vllm.inputs",
    "RequestOutput": "vllm.outputs",
    "SamplingParams": "vllm.sampling_params",
    "TextPrompt": "vllm.inputs",
    "TokensPrompt": "vllm.inputs",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "ModelRegistry",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]
