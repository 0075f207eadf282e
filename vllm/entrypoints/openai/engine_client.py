# SPDX-License-Identifier: Apache-2.0
"""What the server asks of an engine, as a protocol; `AsyncLLM` is one, tests bring another.

Knows nothing of HTTP.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from vllm.config import ModelConfig
from vllm.inputs import PromptType
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams


class EngineClient(Protocol):
    """An engine that streams outputs for prompts."""

    @property
    def model_config(self) -> ModelConfig:
        """The served model."""
        ...

    @property
    def errored(self) -> bool:
        """Whether the engine has died."""
        ...

    def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one prompt; closing the generator aborts the request."""
        ...

    def check_room(self, requests: Sequence[tuple[int, int]]) -> None:
        """Return if there is room for all of `requests`: outputs and prompt tokens of each.

        Raises:
            VLLMValidationError: there never is.
            EngineOverloadedError: there is none now.
        """
        ...

    async def check_health(self) -> None:
        """Return if the engine answers.

        Raises:
            EngineDeadError: it is dead or hangs.
        """
        ...

    async def get_tokenizer(self) -> Any:
        """The tokenizer, or None if the engine runs on token ids only."""
        ...
