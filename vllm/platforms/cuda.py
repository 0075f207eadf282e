# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs, through PyTorch's CUDA device."""

import os
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.platforms.interface import DeviceMemory, Platform

if TYPE_CHECKING:
    import torch

logger = init_logger(__name__)


class CudaPlatform(Platform):
    """One GPU per process: the one LOCAL_RANK names, else the first."""

    name = "cuda"
    device_type = "cuda"

    def get_attn_backend_priority(self) -> list[str]:
        """Names of attention backends, the preferred first."""
        return ["TORCH_REF"]

    def get_device_memory(self) -> DeviceMemory:
        """Free memory as the driver reports it."""
        import torch

        free, total = torch.cuda.mem_get_info()
        return DeviceMemory(total, free, torch.cuda.memory_reserved(), "GPU memory")

    def get_device_name(self) -> str:
        """The GPU's name."""
        import torch

        return torch.cuda.get_device_name()

    def init_device(self) -> "torch.device":
        """Select the GPU and return it."""
        import torch

        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        logger.info("%s: %s", self.name, self.get_device_name())
        return device
