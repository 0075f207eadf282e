# SPDX-License-Identifier: Apache-2.0
"""The machine this process runs on: a GPU if PyTorch finds one, else the CPU, never nothing."""

import functools

from vllm.platforms.interface import DeviceMemory, Platform

__all__ = ["DeviceMemory", "Platform", "current_platform"]


@functools.cache
def current_platform() -> Platform:
    """The platform, found at the first call (which imports torch)."""
    import torch

    from vllm.platforms.cpu import CpuPlatform
    from vllm.platforms.cuda import CudaPlatform
    from vllm.platforms.rocm import RocmPlatform

    if not torch.cuda.is_available():
        return CpuPlatform()
    return RocmPlatform() if torch.version.hip else CudaPlatform()
