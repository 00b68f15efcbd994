"""One deployment's waiting tickets: bounded, first come first served, each with a deadline (R-9, R-13, R-22, R-23).

Order is arrival. The queue knows no clock: whoever asks hands the time in. While the deployment's session is starting
the clock of ``max_wait_s`` stands still, because a start has a bound of its own; a caller's own limit never does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.ids import TicketId


def accepts(*, open_requests: int, places: int, max_queued: int) -> bool:
    """May one more work request come in (R-9)? ``open_requests`` = waiting + in flight."""
    return open_requests < places + max_queued


def retry_after_s(*, waiting: int, places: int, mean_service_s: float) -> int:
    """Expected whole seconds until a ticket sent then would find room, 1 to 60 (R-35)."""
    expected = (waiting + 1) * mean_service_s / max(1, places)
    return max(1, min(60, math.ceil(expected)))


@dataclass(slots=True)
class Entry:
    """One waiting ticket. ``deadline`` moves while the clock stands still; ``hard_deadline`` never moves."""

    ticket_id: TicketId
    queued_at: float
    deadline: float
    hard_deadline: float = math.inf


class Queue:
    """First come, first served. Every operation but `position` is O(1) in the number of waiting tickets."""

    __slots__ = ("_entries", "_stopped_since")

    def __init__(self) -> None:
        self._entries: dict[TicketId, Entry] = {}
        self._stopped_since: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TicketId]:
        return iter(self._entries)

    def __contains__(self, ticket_id: object) -> bool:
        return ticket_id in self._entries

    def push(self, entry: Entry) -> None:
        """Add at the end; the same ticket twice is a defect."""
        if entry.ticket_id in self._entries:
            raise AssertionError(f"ticket {entry.ticket_id} is queued twice")
        self._entries[entry.ticket_id] = entry

    def push_front(self, entry: Entry) -> None:
        """Give a ticket back its old rank before all others (R-45)."""
        self._entries = {entry.ticket_id: entry, **self._entries}

    def remove(self, ticket_id: TicketId) -> None:
        """Take a ticket out, as if it had never come; one that is not there changes nothing (R-13)."""
        self._entries.pop(ticket_id, None)

    def head(self) -> Entry | None:
        return next(iter(self._entries.values()), None)

    def position(self, ticket_id: TicketId) -> int | None:
        """Tickets ahead of this one, from 0."""
        for place, queued in enumerate(self._entries):
            if queued == ticket_id:
                return place
        return None

    def stop_clock(self, now: float) -> None:
        """The deployment's session is starting: ``max_wait_s`` does not run. Idempotent."""
        if self._stopped_since is None:
            self._stopped_since = now

    def start_clock(self, now: float) -> None:
        """The start is over: deadlines move by the time that stood still since each ticket came. Idempotent."""
        if self._stopped_since is None:
            return
        for entry in self._entries.values():
            entry.deadline += now - max(self._stopped_since, entry.queued_at)
        self._stopped_since = None

    def _due_at(self, entry: Entry) -> float:
        return entry.hard_deadline if self._stopped_since is not None else min(entry.deadline, entry.hard_deadline)

    def next_deadline(self) -> float:
        """The earliest time at which a ticket expires; infinite if none can."""
        return min(map(self._due_at, self._entries.values()), default=math.inf)

    def expired(self, now: float) -> list[TicketId]:
        return [entry.ticket_id for entry in self._entries.values() if self._due_at(entry) <= now]
