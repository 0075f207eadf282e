# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of the machine it runs on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of the device the model runs on, in bytes.

    Attributes:
        total: what this process may use at most.
        available: what is left now.
        used: what this process uses now.
        bound_by: what sets the limit, for logs.
    """

    total: int
    available: int
    used: int
    bound_by: str


class Platform(ABC):
    """One kind of device.

    Attributes:
        name: as in logs and documentation.
        device_type: PyTorch's word.
    """

    name: str
    device_type: str

    @abstractmethod
    def get_attn_backend_priority(self) -> list[str]:
        """Names of attention backends, the preferred first."""

    @abstractmethod
    def get_device_memory(self) -> DeviceMemory:
        """Memory now."""

    @abstractmethod
    def get_device_name(self) -> str:
        """The hardware's name."""

    @abstractmethod
    def init_device(self) -> "torch.device":
        """Make this process use the device, once, and return it."""

    def is_cpu(self) -> bool:
        """Whether the model runs on the CPU."""
        return self.device_type == "cpu"
