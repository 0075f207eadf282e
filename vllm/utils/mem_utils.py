# SPDX-License-Identifier: Apache-2.0
"""How much memory this process may use: the least of host, control groups and resource limits.

Reads /proc and /sys/fs/cgroup (versions 1 and 2, each level up to the root); knows no engine.
All sizes are bytes. Paths are below a root that tests replace.
"""

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KIB, MIB, GIB = 2**10, 2**20, 2**30
_UNLIMITED = 2**60  # version 1 writes "no limit" as a number just below 2**63


@dataclass(frozen=True, slots=True)
class MemoryView:
    """One bound on this process's memory.

    Attributes:
        name: what sets it, for logs.
        total: the limit.
        available: what is left below it, reclaimable file cache counted as left.
    """

    name: str
    total: int
    available: int


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """What the process may really use.

    Attributes:
        total: the least limit.
        available: the least of what is left below any limit.
        bound_by: which limit leaves the least.
        resident: memory of this process that is in use now.
    """

    total: int
    available: int
    bound_by: str
    resident: int


def memory_snapshot(
    root: Path = Path("/"), address_space: MemoryView | None = None
) -> MemorySnapshot:
    """The least of all bounds on this process.

    Args:
        root: file system root, for tests.
        address_space: bound of RLIMIT_AS, for tests; None asks the system.
    """
    views = [_host(root), *_cgroup_v2(root), *_cgroup_v1(root)]
    address_space = address_space or _address_space(root)
    if address_space is not None:
        views.append(address_space)
    tightest = min(views, key=lambda view: view.available)
    return MemorySnapshot(
        total=min(view.total for view in views),
        available=max(0, tightest.available),
        bound_by=tightest.name,
        resident=_status_bytes(root, "VmRSS") or 0,
    )


def format_bytes(size: int) -> str:
    """`size` for messages: in GiB, or below one in MiB."""
    return f"{size / GIB:.2f} GiB" if abs(size) >= GIB else f"{size / MIB:.1f} MiB"


def cgroup_directories(root: Path, controller: str) -> Iterator[Path]:
    """Control-group folders of this process, from its own up to the root of the hierarchy.

    Inside a container the path in /proc may not exist below the mount; the mount's own folder
    is then the process's group.

    Args:
        controller: "" for version 2, a controller's name for version 1.
    """
    mount = root / "sys/fs/cgroup" / controller
    if not controller and not (mount / "cgroup.controllers").exists():
        mount = mount / "unified"
    if not mount.is_dir():
        return
    folder = mount / _cgroup_path(root, controller).lstrip("/")
    while folder != mount:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield mount


def read_int(path: Path) -> int | None:
    """The integer in a file; None if there is no such file or it holds "max" or other text."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _cgroup_path(root: Path, controller: str) -> str:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # A path that climbs ("/../..") lies outside this namespace: nothing below the mount.
        if controller in controllers.split(",") and ".." not in path.split("/"):
            return path
    return ""


def _host(root: Path) -> MemoryView:
    fields = _key_values(root / "proc/meminfo")
    total = fields.get("MemTotal", 0) * KIB
    available = fields.get("MemAvailable", fields.get("MemFree", 0)) * KIB
    return MemoryView("host memory", total, available)


def _cgroup_v2(root: Path) -> Iterator[MemoryView]:
    for folder in cgroup_directories(root, ""):
        limits = [read_int(folder / name) for name in ("memory.max", "memory.high")]
        limit = min((value for value in limits if value is not None), default=None)
        used = read_int(folder / "memory.current")
        if limit is not None and used is not None:
            reclaimable = _key_values(folder / "memory.stat").get("inactive_file", 0)
            yield MemoryView("control group memory limit", limit, limit - used + reclaimable)


def _cgroup_v1(root: Path) -> Iterator[MemoryView]:
    for folder in cgroup_directories(root, "memory"):
        limit = read_int(folder / "memory.limit_in_bytes")
        used = read_int(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            reclaimable = _key_values(folder / "memory.stat").get("total_inactive_file", 0)
            yield MemoryView("control group memory limit", limit, limit - used + reclaimable)


def _address_space(root: Path) -> MemoryView | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    used = _status_bytes(root, "VmSize") or 0
    return MemoryView("address-space limit (ulimit -v)", limit, limit - used)


def _status_bytes(root: Path, key: str) -> int | None:
    value = _key_values(root / "proc/self/status").get(key)
    return None if value is None else value * KIB


def _key_values(path: Path) -> dict[str, int]:
    """Lines "key value" or "key: value kB" as a mapping; lines of another form are left out."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    values = {}
    for line in lines:
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            values[words[0]] = int(words[1])
    return values
