# SPDX-License-Identifier: Apache-2.0
"""Answers /v1/models: one card per served name of the one model."""

from vllm.entrypoints.openai.models.protocol import ModelCard, ModelList
from vllm.entrypoints.openai.serving import OpenAIServing


class OpenAIServingModels(OpenAIServing):
    """Serves /v1/models."""

    def show(self) -> ModelList:
        """All served names."""
        return ModelList(data=[self._card(name) for name in self.state.served_model_names])

    def retrieve(self, name: str) -> ModelCard:
        """One served name.

        Raises:
            ModelNotFoundError: it is not served.
        """
        self.check_model(name)
        return self._card(name)

    def _card(self, name: str) -> ModelCard:
        # `root` is the reported name, not where the files are: paths are the server's business.
        return ModelCard(
            id=name,
            created=self.state.started_at,
            root=self.state.model_name,
            max_model_len=self.max_model_len,
        )
