# SPDX-License-Identifier: Apache-2.0
"""The CPU: memory of the process's control group, threads of its affinity mask."""

import os
import platform as python_platform
from pathlib import Path
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.platforms.interface import DeviceMemory, Platform
from vllm.utils.cpu_affinity import usable_cpus
from vllm.utils.mem_utils import memory_snapshot

if TYPE_CHECKING:
    import torch

logger = init_logger(__name__)


class CpuPlatform(Platform):
    """Runs everywhere."""

    name = "cpu"
    device_type = "cpu"

    def get_attn_backend_priority(self) -> list[str]:
        """Names of attention backends, the preferred first."""
        return ["TORCH_REF"]

    def get_device_memory(self) -> DeviceMemory:
        """The least of host memory, control-group limits and ulimits."""
        memory = memory_snapshot()
        return DeviceMemory(memory.total, memory.available, memory.resident, memory.bound_by)

    def get_device_name(self) -> str:
        """Model name of the processor."""
        try:
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        except OSError:
            pass
        return python_platform.processor() or python_platform.machine()

    def init_device(self) -> "torch.device":
        """Set the number of threads and return the device."""
        import torch

        num_threads = self.num_threads()
        torch.set_num_threads(num_threads)
        threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
        logger.info("CPU: %s, %s", self.get_device_name(), threads)
        hint = busy_hint(os.getloadavg()[0], os.cpu_count() or 1, num_threads)
        if hint is not None and not os.environ.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
            logger.warning("%s", hint)
        return torch.device("cpu")

    @staticmethod
    def num_threads() -> int:
        """Threads for computation: OMP_NUM_THREADS if set, else the CPUs that may be used."""
        text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
        if text.isdigit() and int(text) > 0:
            return int(text)
        if text:
            logger.warning("OMP_NUM_THREADS=%r is not a positive number; ignored", text)
        return usable_cpus()


def busy_hint(load: float, num_cpus: int, num_threads: int) -> str | None:
    """What to say if other processes already take the CPUs that the threads would run on.

    Args:
        load: processes that ran or wanted to, on average over the last minute.
        num_cpus: of the whole machine, as `load` is.
    """
    # Starting up makes some load of its own.
    if load + num_threads <= num_cpus + 0.75:
        return None
    return (
        f"the CPUs are busy (load average {load:.1f} on {num_cpus}, and {num_threads} to be used "
        "here): threads that wait for each other may make this several times slower; if that "
        "lasts, set OMP_NUM_THREADS to the CPUs that are free, or GOMP_SPINCOUNT=1000"
    )
