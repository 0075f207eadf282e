# SPDX-License-Identifier: Apache-2.0
"""Time stamps in shared memory by which the front end tells a hung core from a busy one.

Two stamps, since a step may rightly take long. The pulse comes from a thread that does nothing
else: it stops only when the whole process does (stopped, or starved). The progress comes from the
core's loop, between steps: a step that never ends lets it grow old, which is why it has a limit
of its own, well above any step. The monotonic clock is the same for all processes of a machine.
"""

import mmap
import threading
import time
from array import array
from pathlib import Path

_PULSE_AT, _PROGRESS_AT = 0, 1
PROGRESS_FACTOR = 10
"""How many times longer than without a pulse the loop may be without progress."""


class Heartbeat:
    """One side of the stamps.

    Args:
        path: the file both sides map.
        create: make the file, with the stamps at now.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(array("d", [time.monotonic()] * 2).tobytes())
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        # A double in its place is written at once. (struct would put zeros there first, and a
        # reader in between would see a process that has been silent since the machine started.)
        self._stamps = memoryview(self._memory).cast("d")

    def beat(self) -> None:
        """Say that the loop goes round."""
        self._stamps[_PROGRESS_AT] = time.monotonic()

    def start_pulse(self, interval_s: float) -> None:
        """Say from now on, on a thread of its own, that the process lives."""
        pulse = threading.Thread(
            target=self._pulse, args=(interval_s,), name="heartbeat", daemon=True
        )
        pulse.start()

    def silence_s(self, hang_timeout_s: float) -> float | None:
        """Seconds for which a hung process has been silent; None if it lives or works.

        Args:
            hang_timeout_s: longest time without a pulse; progress may take `PROGRESS_FACTOR`
                times as long.
        """
        for index, limit in (
            (_PULSE_AT, hang_timeout_s),
            (_PROGRESS_AT, PROGRESS_FACTOR * hang_timeout_s),
        ):
            age_s = time.monotonic() - float(self._stamps[index])
            if age_s > limit:
                return age_s
        return None

    def close(self) -> None:
        """Unmap; not on the side that pulses."""
        self._stamps.release()
        self._memory.close()

    def _pulse(self, interval_s: float) -> None:
        while True:
            self._stamps[_PULSE_AT] = time.monotonic()
            time.sleep(interval_s)
