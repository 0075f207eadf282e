# SPDX-License-Identifier: Apache-2.0
"""What a model with routed experts adds: the engine's experts, and the proof that all are found."""

from torch import nn

from vllm.logger import init_logger
from vllm.model_executor.models.transformers.base import Base

logger = init_logger(__name__)


class MoEMixin(Base):
    """Experts.

    Attributes:
        experts: modules with stacked expert weights, by qualified name.
    """

    experts: dict[str, nn.Module]

    def recursive_replace(self) -> None:
        super().recursive_replace()
        self.experts = {name: self.hf_model.get_submodule(name) for name in self.expert_names}
        if not self.experts:
            logger.warning(
                "%s: its experts are modules of their own kind; they run Transformers' code",
                type(self.hf_model).__name__,
            )
