"""Limits that control groups put on this process, v1 and v2, over every enclosing group (M-25).

The tightest group decides, whether it is our own or one around it. A level whose files are not there (another
namespace, no such controller) says nothing. ``root`` is where proc and sys are found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
V1_UNLIMITED_BYTES = 1 << 62  # v1 says "no limit" with a number near the largest page count


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One limited group, in bytes. ``inactive_file`` is cache that the kernel gives back when asked."""

    limit: int
    current: int
    inactive_file: int

    @property
    def available(self) -> int:
        return max(0, self.limit - self.current + self.inactive_file)


@dataclass(frozen=True, slots=True)
class _Names:
    limit: str
    current: str
    inactive: str


_V2 = _Names("memory.max", "memory.current", "inactive_file")
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_groups(root: str = "/") -> tuple[MemoryGroup, ...]:
    """Every enclosing group with a limit, innermost first."""
    found: list[MemoryGroup] = []
    for mount, path, names in _places(root, "memory", (_V1, _V2)):
        for folder in _upwards(mount, path):
            limit = _number(os.path.join(folder, names.limit))
            if limit is None or limit >= V1_UNLIMITED_BYTES:
                continue
            current = _number(os.path.join(folder, names.current)) or 0
            found.append(MemoryGroup(limit, current, _stat(os.path.join(folder, "memory.stat"), names.inactive)))
    return tuple(found)


def core_limit(root: str = "/") -> int | None:
    """Whole cores that the tightest group allows, rounded up; None without a limit."""
    limits: list[int] = []
    for mount, path, is_v2 in _places(root, "cpu", (False, True)):
        for folder in _upwards(mount, path):
            pair = _quota(folder, is_v2=is_v2)
            if pair is not None and pair[0] > 0 and pair[1] > 0:
                limits.append(max(1, -(-pair[0] // pair[1])))
    return min(limits, default=None)


def _quota(folder: str, *, is_v2: bool) -> tuple[int, int] | None:
    """Microseconds of each period that may be used."""
    if is_v2:
        words = (_read(os.path.join(folder, "cpu.max")) or "").split()
        return (int(words[0]), int(words[1])) if len(words) == 2 and all(map(str.isdecimal, words)) else None
    quota = _number(os.path.join(folder, "cpu.cfs_quota_us"))
    period = _number(os.path.join(folder, "cpu.cfs_period_us"))
    return (quota, period) if quota and period else None


def _places(root: str, controller: str, kinds: tuple[T, T]) -> Iterator[tuple[str, str, T]]:
    """Mount, our path below it and the kind, for v1 and v2 alike; hybrid hosts have both."""
    base = os.path.join(root, "sys/fs/cgroup")
    for line in (_read(os.path.join(root, "proc/self/cgroup")) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield base, path, kinds[1]
            yield os.path.join(base, "unified"), path, kinds[1]
        elif controller in controllers.split(","):
            for name in dict.fromkeys((controller, controllers)):
                yield os.path.join(base, name), path, kinds[0]


def _upwards(mount: str, path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part not in {"", ".", ".."}]
    for depth in range(len(parts), -1, -1):
        yield os.path.join(mount, *parts[:depth])


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def _number(path: str) -> int | None:
    """A whole number; "max", -1 and everything else are no limit."""
    text = (_read(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _stat(path: str, name: str) -> int:
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return 0
