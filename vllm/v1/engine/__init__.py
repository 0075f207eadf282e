# SPDX-License-Identifier: Apache-2.0
"""Text to tokens, requests in and out. The records that cross to the core are in `messages`."""

from vllm.v1.engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    FinishReason,
)

__all__ = [
    "EngineCoreOutput",
    "EngineCoreOutputs",
    "EngineCoreRequest",
    "EngineCoreRequestType",
    "FinishReason",
]
