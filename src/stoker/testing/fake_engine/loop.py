"""A very small event loop for the fake engine: coroutines over a selector, quick to import.

It decides nothing but whose turn it is. Invariants: one thread; a socket is waited for by one task at a time; a task
waits for at most one socket, one moment and one bell, whichever comes first. It exists because importing a full event
loop costs more time than the whole fake engine may take to start (E-107).
"""

from __future__ import annotations

import heapq
import selectors
import socket
import time
from collections import deque
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
FOREVER = float("inf")


@dataclass(slots=True, eq=False)
class Bell:
    """Wakes the tasks that wait for it: the first one, or all."""

    waiting: deque[Task] = field(default_factory=deque)

    def ring(self) -> None:
        if self.waiting:
            self.waiting[0].wake("bell")

    def ring_all(self) -> None:
        for task in tuple(self.waiting):
            task.wake("bell")


class Wait(NamedTuple):
    until: float = FOREVER
    sock: socket.socket | None = None
    events: int = READ
    bell: Bell | None = None

    def __await__(self) -> Generator[Wait, str, str]:
        """Suspend the task; the value says why it goes on: ``time``, ``io`` or ``bell``."""
        return (yield self)


@dataclass(slots=True, eq=False)
class Task:
    """One coroutine and what it waits for."""

    loop: Loop
    coroutine: Coroutine[Any, Any, Any]
    wait: Wait | None = None
    turn: int = 0

    def wake(self, why: str) -> None:
        if self.wait is None:
            return
        sock, bell = self.wait.sock, self.wait.bell
        if sock is not None:
            self.loop.selector.unregister(sock)
        if bell is not None:
            bell.waiting.remove(self)
        self.wait = None
        self.turn += 1
        self.loop.ready.append((self, why))


class Loop:
    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.ready: deque[tuple[Task, str | None]] = deque()
        self.timers: list[tuple[float, int, Task, int]] = []
        self._order = count()

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.ready.append((Task(self, coroutine), None))

    def run(self) -> None:
        """Run until no task is left."""
        while self.ready or self.timers or self.selector.get_map():
            for _ in range(len(self.ready)):
                task, why = self.ready.popleft()
                self._step(task, why)
            for key, _ in self.selector.select(self._pause_s()):
                key.data.wake("io")
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                _, _, task, turn = heapq.heappop(self.timers)
                if task.turn == turn:
                    task.wake("time")

    def _step(self, task: Task, why: str | None) -> None:
        try:
            wait: Wait = task.coroutine.send(why)
        except StopIteration:
            return
        task.wait = wait
        if wait.sock is not None:
            self.selector.register(wait.sock, wait.events, task)
        if wait.bell is not None:
            wait.bell.waiting.append(task)
        if wait.until != FOREVER:
            heapq.heappush(self.timers, (wait.until, next(self._order), task, task.turn))

    def _pause_s(self) -> float | None:
        if self.ready:
            return 0.0
        if not self.timers:
            return None
        return max(0.0, self.timers[0][0] - time.monotonic())
