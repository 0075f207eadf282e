# SPDX-License-Identifier: Apache-2.0
"""A time stamp in shared memory by which the front end tells a hung core from a busy one.

The core's loop writes it between steps, nothing else does: a stopped process and a stuck step
both let it grow old. The monotonic clock is the same for all processes of a machine.
"""

import mmap
import struct
import time
from pathlib import Path

_STAMP = struct.Struct("=d")


class Heartbeat:
    """One side of the stamp.

    Args:
        path: the file both sides map.
        create: make the file, with the stamp at now.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(_STAMP.pack(time.monotonic()))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _STAMP.size)

    def beat(self) -> None:
        """Say that the loop goes round."""
        _STAMP.pack_into(self._memory, 0, time.monotonic())

    def age_s(self) -> float:
        """Seconds since the last beat."""
        stamp: float = _STAMP.unpack_from(self._memory, 0)[0]
        return max(0.0, time.monotonic() - stamp)

    def close(self) -> None:
        """Unmap."""
        self._memory.close()
