"""Which engine logs may go (S-23): the last five lives of each replica stay, for two weeks, within a total size.

Never those of a live session, nor of a replica's last failed attempt: that is what somebody will look for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stoker.ids import Generation

KEPT_LIVES = 5
KEPT_S = 14 * 86_400.0
KEPT_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The log of one life: all its files' bytes and the wall time of its last line."""

    generation: Generation
    bytes: int
    written: float


def expired(
    logs: Iterable[LogFiles],
    *,
    replica_of: Mapping[Generation, tuple[str, int]],
    protected: Collection[Generation],
    wall: float,
) -> tuple[Generation, ...]:
    """Generations whose logs may be deleted, oldest first. ``protected``: live ones and last failed attempts.

    A log that belongs to no known replica is bound by age and size alone.
    """
    seen: dict[tuple[str, int], int] = {}
    kept_bytes = 0
    gone = []
    for log in sorted(logs, key=lambda log: log.generation, reverse=True):
        replica = replica_of.get(log.generation)
        lives = seen.get(replica, 0) if replica is not None else 0
        if replica is not None:
            seen[replica] = lives + 1
        too_many, too_old = lives >= KEPT_LIVES, wall - log.written > KEPT_S
        too_big = kept_bytes + log.bytes > KEPT_BYTES
        if log.generation not in protected and (too_many or too_old or too_big):
            gone.append(log.generation)
        else:
            kept_bytes += log.bytes
    return tuple(reversed(gone))
