# SPDX-License-Identifier: Apache-2.0
"""Memory and CPUs of the process on faked /proc and control-group trees."""

import os

import pytest

from vllm.platforms import current_platform
from vllm.platforms.cpu import CpuPlatform
from vllm.utils.cpu_affinity import cpu_quota, usable_cpus
from vllm.utils.mem_utils import GIB, MIB, MemoryView, memory_snapshot


@pytest.fixture
def tree(tmp_path):
    """Writer of files below a faked root; a host of 64 GiB with 60 left, this process 1 GiB."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text) + "\n")

    write("proc/meminfo", f"MemTotal: {64 * MIB} kB\nMemFree: 9 kB\nMemAvailable: {60 * MIB} kB")
    write("proc/self/status", f"Name: x\nVmSize: {3 * MIB} kB\nVmRSS: {MIB} kB")
    write.root = tmp_path
    return write


def v2(tree, own="/a/b"):
    tree("proc/self/cgroup", f"0::{own}")
    tree("sys/fs/cgroup/cgroup.controllers", "cpu memory")


def test_without_limits_the_host_counts(tree):
    memory = memory_snapshot(tree.root)
    assert (memory.total, memory.available) == (64 * GIB, 60 * GIB)
    assert (memory.bound_by, memory.resident) == ("host memory", GIB)


def test_version_2_limit_less_use_plus_reclaimable(tree):
    v2(tree)
    tree("sys/fs/cgroup/a/b/memory.max", 2 * GIB)
    tree("sys/fs/cgroup/a/b/memory.current", GIB)
    tree("sys/fs/cgroup/a/b/memory.stat", f"anon 5\ninactive_file {256 * MIB}")
    memory = memory_snapshot(tree.root)
    assert (memory.total, memory.available) == (2 * GIB, GIB + 256 * MIB)
    assert "control group" in memory.bound_by


def test_version_2_parents_and_the_soft_limit_bind_too(tree):
    v2(tree)
    tree("sys/fs/cgroup/a/b/memory.max", "max")
    tree("sys/fs/cgroup/a/b/memory.current", GIB)
    tree("sys/fs/cgroup/a/memory.max", 8 * GIB)
    tree("sys/fs/cgroup/a/memory.high", 4 * GIB)
    tree("sys/fs/cgroup/a/memory.current", 3 * GIB)
    memory = memory_snapshot(tree.root)
    assert (memory.total, memory.available) == (4 * GIB, GIB)


@pytest.mark.parametrize("own", ["/", "/../..", "/docker/not-mounted-here"])
def test_in_a_container_the_mount_itself_is_the_group(tree, own):
    v2(tree, own)
    tree("sys/fs/cgroup/memory.max", 3 * GIB)
    tree("sys/fs/cgroup/memory.current", GIB)
    assert memory_snapshot(tree.root).available == 2 * GIB


def test_version_1(tree):
    tree("proc/self/cgroup", "3:cpu,cpuacct:/c\n4:memory:/m/n\n0::/")
    tree("sys/fs/cgroup/memory/m/n/memory.limit_in_bytes", 2**63 - 4096)
    tree("sys/fs/cgroup/memory/m/n/memory.usage_in_bytes", GIB)
    tree("sys/fs/cgroup/memory/m/memory.limit_in_bytes", 2 * GIB)
    tree("sys/fs/cgroup/memory/m/memory.usage_in_bytes", GIB)
    tree("sys/fs/cgroup/memory/m/memory.stat", f"total_inactive_file {MIB}")
    memory = memory_snapshot(tree.root)
    assert (memory.total, memory.available) == (2 * GIB, GIB + MIB)


def test_ulimit_binds_and_what_is_overdrawn_is_nothing(tree):
    limit = MemoryView("ulimit", 2 * GIB, 2 * GIB - 3 * GIB)
    memory = memory_snapshot(tree.root, limit)
    assert (memory.total, memory.available, memory.bound_by) == (2 * GIB, 0, "ulimit")


def test_the_real_machine_answers():
    memory = memory_snapshot()
    assert 0 < memory.resident < memory.total
    assert 0 < memory.available <= memory.total


def test_cpu_quota_of_both_versions(tree, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert cpu_quota(tree.root) is None
    assert usable_cpus(tree.root) == 16
    v2(tree)
    tree("sys/fs/cgroup/a/b/cpu.max", "max 100000")
    assert usable_cpus(tree.root) == 16
    tree("sys/fs/cgroup/a/cpu.max", "250000 100000")
    assert cpu_quota(tree.root) == 2.5
    assert usable_cpus(tree.root) == 3
    tree("proc/self/cgroup", "3:cpu,cpuacct:/c")
    tree("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", 50000)
    tree("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", 100000)
    assert usable_cpus(tree.root) == 1


def test_the_affinity_mask_binds(monkeypatch, tree):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert usable_cpus(tree.root) == 2


def test_without_an_accelerator_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    current_platform.cache_clear()
    try:
        platform = current_platform()
        assert (platform.name, platform.device_type) == ("cpu", "cpu")
        assert platform.get_device_name()
        assert platform.get_device_memory().available > 0
    finally:
        current_platform.cache_clear()


@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("4,2", 4), ("", None), ("many", None)])
def test_omp_num_threads_is_honoured_when_it_is_a_number(monkeypatch, text, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert CpuPlatform.num_threads() == (threads or usable_cpus())
