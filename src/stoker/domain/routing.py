"""Which replica serves a ticket (R-37)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stoker.ids import Generation


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ready replica as routing sees it. ``width`` is its number of places."""

    generation: Generation
    replica: int
    width: int
    in_flight: int
    earmarked: bool = False
    degraded: bool = False

    @property
    def has_place(self) -> bool:
        return self.in_flight < self.width and not self.earmarked and not self.degraded


def route(candidates: Iterable[Candidate]) -> Generation | None:
    """Least ``in_flight / width``, then lowest index, among those with a free place; None if there is none."""
    best: tuple[float, int, Generation] | None = None
    for candidate in candidates:
        if not candidate.has_place:
            continue
        key = (candidate.in_flight / candidate.width, candidate.replica, candidate.generation)
        if best is None or key < best:
            best = key
    return None if best is None else best[2]
