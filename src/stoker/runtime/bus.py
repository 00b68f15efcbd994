"""Events for whoever listens: numbered by the kernel, kept for replay, never waited for (C-13 to C-16).

A subscriber that reads too slowly loses its queue and is told so by a gap and a fresh snapshot; it delays neither the
kernel nor another subscriber. Replay, filter and live part join without loss or doubles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import anyio

from stoker.domain.events import EVENTS, Event
from stoker.errors import ErrorCode, error_for
from stoker.ids import Instance

_QUEUE = 1024


class Bus:
    """``snapshot`` gives the fields of ``stream.snapshot-taken``; called in the caller's own step."""

    def __init__(
        self, instance: Instance, snapshot: Callable[[], Mapping[str, Any]], *, buffer: int = 4096, most: int = 64
    ) -> None:
        self._instance = instance
        self._snapshot = snapshot
        self._kept: deque[Event] = deque(maxlen=buffer)
        self._subscribers: set[_Subscriber] = set()
        self._most = most
        self._closed = False
        self.gaps: dict[str, int] = {}

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    @property
    def last_id(self) -> str:
        return self._kept[-1].id if self._kept else f"{self._instance}:0"

    def publish(self, event: Event) -> None:
        """Keep one event and offer it to every subscriber; returns at once, whoever sleeps."""
        self._kept.append(event)
        for subscriber in self._subscribers:
            subscriber.offer(event)

    def close(self) -> None:
        """Every stream ends after what it has been offered."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.woken.set()

    async def subscribe(
        self, *, last_event_id: str | None, topics: frozenset[str] | None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Events as flat mappings, beginning as C-14 says: a snapshot, the missed ones, or a gap and a snapshot.

        Raises:
            UsageError: ``too-many-open`` when 64 listen already.
        """
        if len(self._subscribers) >= self._most:
            raise error_for(
                ErrorCode.TOO_MANY_OPEN,
                f"{len(self._subscribers)} subscribers listen already; {self._most} may.",
                remedy="Close one of them.",
                retry_after_s=5,
            )
        subscriber = _Subscriber(topics)
        self._subscribers.add(subscriber)
        try:
            for first in self._beginning(subscriber, last_event_id):
                yield first
            while True:
                if subscriber.overflowed:
                    subscriber.reset()
                    yield self._gap(None, "slow-subscriber")
                    yield self._snapshot_event()
                while subscriber.queue:
                    yield subscriber.queue.popleft().flat()
                if subscriber.overflowed:
                    continue
                if self._closed:
                    return
                subscriber.woken = anyio.Event()
                await subscriber.woken.wait()
        finally:
            self._subscribers.discard(subscriber)

    def _beginning(self, subscriber: _Subscriber, last_event_id: str | None) -> list[Mapping[str, Any]]:
        """Computed in one go, so that nothing can come between it and the live part."""
        if last_event_id is None:
            return [self._snapshot_event()]
        instance, _, seq = last_event_id.rpartition(":")
        if instance != self._instance or not seq.isdecimal():
            return [self._gap(last_event_id, "instance"), self._snapshot_event()]
        after = int(seq)
        oldest = self._kept[0].seq if self._kept else 1
        if after < oldest - 1 or (self._kept and after > self._kept[-1].seq):
            return [self._gap(last_event_id, "buffer"), self._snapshot_event()]
        return [event.flat() for event in self._kept if event.seq > after and subscriber.wants(event)]

    def _snapshot_event(self) -> Mapping[str, Any]:
        return {"id": self.last_id, "event": "stream.snapshot-taken", **self._snapshot()}

    def _gap(self, since: str | None, reason: str) -> Mapping[str, Any]:
        self.gaps[reason] = self.gaps.get(reason, 0) + 1
        return {"id": self.last_id, "event": "stream.gapped", "from": since, "to": self.last_id, "reason": reason}


class _Subscriber:
    def __init__(self, topics: frozenset[str] | None) -> None:
        self.topics = topics
        self.queue: deque[Event] = deque()
        self.overflowed = False
        self.woken = anyio.Event()

    def wants(self, event: Event) -> bool:
        return self.topics is None or EVENTS[event.event].topic in self.topics

    def offer(self, event: Event) -> None:
        if self.overflowed or not self.wants(event):
            return
        if len(self.queue) >= _QUEUE:
            self.queue.clear()
            self.overflowed = True
        else:
            self.queue.append(event)
        self.woken.set()

    def reset(self) -> None:
        self.queue.clear()
        self.overflowed = False
