# SPDX-License-Identifier: Apache-2.0
"""What every loader does."""

from abc import ABC, abstractmethod

from torch import nn

from vllm.config import LoadConfig, ModelConfig


class BaseModelLoader(ABC):
    """Fills a built model. Called again, it fills it anew from the files as they are then."""

    def __init__(self, load_config: LoadConfig) -> None:
        self.load_config = load_config

    @abstractmethod
    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Fill every parameter of `model`.

        Raises:
            ModelLoadError: checkpoint and model do not match, or a file is damaged.
        """
