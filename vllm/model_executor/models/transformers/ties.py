# SPDX-License-Identifier: Apache-2.0
"""Parameters that share one storage, as the configuration and then the checkpoint decide.

A tied pair may come as the source, the target, or both. If both come and differ, they are not
tied, whatever the configuration says.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vllm.logger import init_logger

logger = init_logger(__name__)


class TiedParameters:
    """The tied parameters of one model.

    Attributes:
        sources: target's name -> source's name.
    """

    def __init__(self, model: nn.Module, sources: Mapping[str, str]) -> None:
        self._model = model
        self.sources = dict(sources)
        self._held: list[tuple[str, Tensor]] = []

    def tie(self) -> None:
        """Let each target be its source."""
        for target, source in self.sources.items():
            _set_parameter(self._model, target, self._model.get_parameter(source))

    def hold(self, name: str, tensor: Tensor) -> bool:
        """Keep a target's tensor until its source has come; False if `name` is no target."""
        if name not in self.sources:
            return False
        self._held.append((name, tensor))
        return True

    def settle(self, written: set[str]) -> list[tuple[str, Tensor]]:
        """What is still to be loaded, and where: into the source, or into a target set free."""
        due: list[tuple[str, Tensor]] = []
        for name, tensor in self._held:
            source = self.sources[name]
            if source not in written:
                due.append((source, tensor))
                written.add(source)
            else:
                self._untie(name)
                due.append((name, tensor))
        self._held = []
        return due

    def _untie(self, name: str) -> None:
        tied = self._model.get_parameter(name)
        own = nn.Parameter(torch.empty_like(tied), requires_grad=False)
        vars(own).update(vars(tied))
        _set_parameter(self._model, name, own)

    def retie_equal(self) -> None:
        """After loading, join again those that turned out equal."""
        for target, source in self.sources.items():
            ours, theirs = (self._model.get_parameter(n) for n in (target, source))
            if ours is theirs:
                continue
            if torch.equal(ours, theirs):
                _set_parameter(self._model, target, theirs)
            else:
                logger.warning(
                    "The configuration ties %s to %s, but the checkpoint holds different values; "
                    "they are not tied",
                    target,
                    source,
                )


def _set_parameter(model: nn.Module, name: str, param: nn.Parameter) -> None:
    module_name, _, attribute = name.rpartition(".")
    model.get_submodule(module_name)._parameters[attribute] = param
