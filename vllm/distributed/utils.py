# SPDX-License-Identifier: Apache-2.0
"""How one machine is shared by ranks: threads and memory. Knows no torch."""

from vllm.platforms.interface import DeviceMemory
from vllm.utils.cpu_affinity import usable_cpus


def threads_per_rank(local_world_size: int) -> int:
    """Threads for each of so many ranks on this machine, at least 1."""
    return max(1, usable_cpus() // local_world_size)


def memory_per_rank(host: DeviceMemory, local_world_size: int) -> DeviceMemory:
    """One rank's part of memory that the ranks of this machine share.

    What is left is shared evenly; what a rank holds already is its own. Over all ranks that adds
    up to what is left and what is held. All must look before one takes.
    """
    if local_world_size == 1:
        return host
    return DeviceMemory(
        total=host.total // local_world_size,
        available=host.available // local_world_size,
        used=host.used,
        bound_by=f"{host.bound_by} shared by {local_world_size} ranks",
    )
