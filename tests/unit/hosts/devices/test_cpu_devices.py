"""System memory under control groups, v1 and v2, nested (M-25; V-6); cores under quotas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.domain.hardware import PoolKind, PoolState
from stoker.hosts.devices.cgroups import core_limit
from stoker.hosts.devices.cpu import CpuDevices, usable_cores
from stoker.ids import RAM

GIB = 1 << 30


class Machine:
    """A root folder with the files of one machine."""

    def __init__(self, root: Path, *, total_gib: float = 32, available_gib: float = 20) -> None:
        self.root = root
        total, available = (int(amount * GIB) // 1024 for amount in (total_gib, available_gib))
        self.file(
            "proc/meminfo", f"MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\nSwapFree: 9999 kB\n"
        )

    def file(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def v2(self, path: str, limit: float | None, current: float = 0, inactive: float = 0) -> None:
        base = f"sys/fs/cgroup{path}"
        self.file(f"{base}/memory.max", "max\n" if limit is None else f"{int(limit * GIB)}\n")
        self.file(f"{base}/memory.current", f"{int(current * GIB)}\n")
        self.file(f"{base}/memory.stat", f"anon 1\ninactive_file {int(inactive * GIB)}\n")

    def v1(self, path: str, limit: int, current: float = 0, inactive: float = 0) -> None:
        base = f"sys/fs/cgroup/memory{path}"
        self.file(f"{base}/memory.limit_in_bytes", f"{limit}\n")
        self.file(f"{base}/memory.usage_in_bytes", f"{int(current * GIB)}\n")
        self.file(f"{base}/memory.stat", f"inactive_file 5\ntotal_inactive_file {int(inactive * GIB)}\n")

    def ram(self) -> tuple[float, float]:
        pool = CpuDevices(str(self.root)).read().ram
        assert pool.kind is PoolKind.RAM
        return pool.total_bytes / GIB, pool.free_bytes / GIB


def test_without_control_groups_the_machine_decides(tmp_path: Path) -> None:
    assert Machine(tmp_path).ram() == (32, 20)


def test_what_is_available_is_capped_at_nine_tenths(tmp_path: Path) -> None:
    assert Machine(tmp_path, total_gib=10, available_gib=9.9).ram() == (10, 9)


def test_v6_a_limited_group_gives_its_file_cache_back(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.file("proc/self/cgroup", "0::/app\n")
    machine.v2("/app", 6, 5, 3.5)
    machine.v2("", None)
    assert machine.ram() == (6, 4.5)


def test_v6_the_tightest_enclosing_group_decides(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.file("proc/self/cgroup", "0::/slice/app\n")
    machine.v2("/slice/app", 6, 5, 3.5)
    machine.v2("/slice", 4, 2, 0)
    assert machine.ram() == (4, 2)


def test_v1_limits_count_and_its_no_limit_does_not(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.file("proc/self/cgroup", "3:cpuset:/\n4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n")
    machine.v1("/docker/abc", 8 * GIB, 3, 1)
    machine.v1("", 9_223_372_036_854_771_712)
    assert machine.ram() == (8, 6)


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.file("proc/self/cgroup", "0::/app\n")
    machine.v2("/app", 2, 3, 0)
    assert machine.ram() == (2, 0)


def test_a_path_of_another_namespace_is_walked_up_to_what_is_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.file("proc/self/cgroup", "4:memory:/docker/not-visible-here\n")
    machine.v1("", 4 * GIB, 1, 0)
    assert machine.ram() == (4, 3)


@pytest.mark.parametrize("text", ["", "nonsense\n", "MemTotal: x kB\n", "MemTotal: 5 kB\n"])
def test_memory_that_cannot_be_read_is_unknown_never_a_wrong_number(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(text)
    assert CpuDevices(str(tmp_path)).read().ram.state is PoolState.UNKNOWN
    assert CpuDevices(str(tmp_path / "nowhere")).read().ram.state is PoolState.UNKNOWN


def test_odd_cgroup_files_are_no_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.file("proc/self/cgroup", "0::/../../etc\nrubbish\n::\n")
    machine.v2("", None)
    machine.file("sys/fs/cgroup/etc/memory.max", "-5\n")
    assert machine.ram() == (32, 20)


def test_cores_follow_the_quota_of_either_version(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert core_limit(str(tmp_path)) is None
    machine.file("proc/self/cgroup", "0::/a/b\n")
    machine.file("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    machine.file("sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    assert core_limit(str(tmp_path)) == 2
    machine.file("proc/self/cgroup", "1:cpu,cpuacct:/x\n")
    machine.file("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "100000\n")
    machine.file("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n")
    assert core_limit(str(tmp_path)) == 1
    assert usable_cores(str(tmp_path)) == 1


def test_this_machine_reads_as_itself() -> None:
    hardware = CpuDevices().read()
    assert hardware.ram.state is PoolState.OK
    assert 0 < hardware.ram.free_bytes <= hardware.ram.total_bytes
    assert 1 <= hardware.cores <= (os.cpu_count() or 1)
    assert 0 <= hardware.physical_cores <= hardware.cores
    assert set(hardware.pools) == {RAM}
