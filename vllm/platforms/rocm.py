# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: PyTorch's ROCm build speaks of them as CUDA devices."""

from vllm.platforms.cuda import CudaPlatform


class RocmPlatform(CudaPlatform):
    """Differs from CUDA in its backends only."""

    name = "rocm"

    def get_attn_backend_priority(self) -> list[str]:
        """Names of attention backends, the preferred first."""
        return ["TORCH_REF"]
