# SPDX-License-Identifier: Apache-2.0
"""A long step is no hang; a silent process is one, and so is a step without end."""

import subprocess
import sys
import time
from pathlib import Path

from vllm.v1.engine.heartbeat import Heartbeat


def sides(tmp_path: Path) -> tuple[Heartbeat, Heartbeat]:
    file = tmp_path / "heartbeat"
    return Heartbeat(file, create=True), Heartbeat(file, create=False)


def test_a_step_longer_than_the_limit_is_no_hang_but_one_without_end_is(tmp_path: Path) -> None:
    front, core = sides(tmp_path)
    core.start_pulse(0.01)
    time.sleep(0.8)  # a step: the loop does not beat
    assert front.silence_s(0.5) is None
    # With a lower limit, which the pulse still keeps, the loop oversteps ten times that.
    deadline = time.monotonic() + 10
    while front.silence_s(0.2) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    core.beat()
    assert front.silence_s(0.5) is None


def test_a_process_that_neither_pulses_nor_beats_is_silent(tmp_path: Path) -> None:
    front, core = sides(tmp_path)
    assert front.silence_s(0.5) is None
    time.sleep(0.1)
    core.beat()  # progress is not a pulse: the thread that pulses is what a stop silences
    silence = front.silence_s(0.05)
    assert silence is not None and silence >= 0.1
    core.close()


def test_a_stamp_is_never_seen_half_written(tmp_path: Path) -> None:
    front = Heartbeat(tmp_path / "heartbeat", create=True)
    code = (
        "import sys; from pathlib import Path; from vllm.v1.engine.heartbeat import Heartbeat\n"
        "core = Heartbeat(Path(sys.argv[1]), create=False)\n"
        "for _ in range(3_000_000): core.beat()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "heartbeat")]) as core:
        while core.poll() is None:
            for _ in range(1000):
                assert front.silence_s(60) is None
    assert core.returncode == 0
