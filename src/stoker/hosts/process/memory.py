"""Measured memory of a unit: proportional anonymous bytes and resident file bytes over its members (M-26)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoker.ports.units import ProcessIdentity, Usage

_ANONYMOUS = {"smaps_rollup": ("Pss_Anon", "Pss_Shmem"), "status": ("RssAnon", "RssShmem")}
_MAPPED = {"smaps_rollup": ("Pss_File",), "status": ("RssFile",)}


def measure(members: Iterable[ProcessIdentity]) -> Usage | None:
    """None when not one member could be read. Kernels without the proportional figures give resident ones."""
    anonymous = mapped = 0
    seen: list[ProcessIdentity] = []
    for member in members:
        for source in ("smaps_rollup", "status"):
            figures = _figures(f"/proc/{member.pid}/{source}")
            if all(name in figures for name in _ANONYMOUS[source]):
                anonymous += sum(figures[name] for name in _ANONYMOUS[source])
                mapped += sum(figures.get(name, 0) for name in _MAPPED[source])
                seen.append(member)
                break
    return Usage(anonymous, mapped, tuple(seen)) if seen else None


def _figures(path: str) -> Mapping[str, int]:
    try:
        with open(path) as file:
            words = (line.split() for line in file)
            return {row[0][:-1]: int(row[1]) * 1024 for row in words if len(row) == 3 and row[2] == "kB"}
    except OSError:
        return {}
