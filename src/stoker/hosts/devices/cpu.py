"""System memory and cores of this host, as far as this process may use them (M-25).

Swap is never counted. Every reading is fresh; what cannot be read is ``unknown``, never a wrong number.
"""

from __future__ import annotations

import os

import psutil

from stoker.domain.hardware import Hardware, Pool, PoolKind, PoolState
from stoker.hosts.devices.cgroups import core_limit, memory_groups
from stoker.ids import RAM

KIB = 1024


class CpuDevices:
    """`stoker.ports.devices.Devices` of a host without cards. ``root``: where proc and sys lie."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def read(self) -> Hardware:
        """The one pool ``ram``: total is the tightest limit there is, free what may still be taken of it."""
        cores = usable_cores(self._root)
        physical = min(psutil.cpu_count(logical=False) or 0, cores)
        return Hardware({RAM: self._ram()}, "cpu", cores, physical)

    def _ram(self) -> Pool:
        system = system_memory(self._root)
        if system is None:
            return Pool(RAM, PoolKind.RAM, "system memory", 0, 0, PoolState.UNKNOWN, source="none")
        groups = memory_groups(self._root)
        total = min((system[0], *(group.limit for group in groups)))
        available = min((system[1], *(group.available for group in groups)))
        free = max(0, min(available, 9 * total // 10))
        source = "cgroup" if total < system[0] else "system"
        return Pool(RAM, PoolKind.RAM, "system memory", total, free, source=source)


def system_memory(root: str = "/") -> tuple[int, int] | None:
    """Total and available bytes of the machine; None if nobody tells."""
    found: dict[str, int] = {}
    try:
        with open(os.path.join(root, "proc/meminfo"), encoding="ascii", errors="replace") as file:
            for line in file:
                key, _, rest = line.partition(":")
                words = rest.split()
                if words and words[0].isdecimal():
                    found[key] = int(words[0]) * KIB
    except OSError:
        return _portable() if root == "/" else None
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    return found["MemTotal"], found["MemAvailable"]


def usable_cores(root: str = "/") -> int:
    """Cores this process may run on: affinity, then control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = core_limit(root)
    return max(1, cores if limit is None else min(cores, limit))


def _portable() -> tuple[int, int] | None:
    """Where there is no /proc."""
    try:
        memory = psutil.virtual_memory()
    except (OSError, RuntimeError, psutil.Error):
        return None
    return int(memory.total), int(memory.available)
