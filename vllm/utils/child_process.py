# SPDX-License-Identifier: Apache-2.0
"""What a process that belongs to another one does: take its orders from standard input, and end
when its parent has ended, however that came about.

The parent keeps the child's standard input open for as long as it lives.
"""

import os
import select
import shutil

_POLL_S = 0.5


def read_first_line() -> bytes:
    """The first line of standard input, read without a buffer that would hide its end.

    Ends the process if the parent is gone before the line is.
    """
    data = b""
    while not data.endswith(b"\n"):
        chunk = os.read(0, 65_536)
        if not chunk:
            os._exit(1)
        data += chunk
    return data


def watch_parent(parent_pid: int, folder: str) -> None:
    """End this process when its parent is gone, whatever it is doing; run in a thread.

    The kernel closes the pipe when the parent dies. A process the parent forked may hold the
    pipe open, so the parent's id is looked at too.

    Args:
        parent_pid: as it was when this process started.
        folder: the parent's, removed for it.
    """
    while True:
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if (readable and not os.read(0, 4096)) or os.getppid() != parent_pid:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)
