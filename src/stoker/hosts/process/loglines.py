"""Lines of one unit in memory, and those of a unit of an earlier run from its files (S-24, S-51).

A cursor counts every line of a unit, also those that were dropped before they reached us, so a gap is a difference of
two cursors. A reader that lags loses the oldest lines and learns how many.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import Self

import anyio

from stoker.ports.units import LogLine

RING_LINES, RING_BYTES = 2000, 256 * 1024
_HEAD_READ_BYTES, _TAIL_READ_BYTES = 1 << 20, 3 << 20


class LogRing:
    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor  # of the last line seen
        self._lines: deque[LogLine] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = anyio.Event()

    def add_all(self, records: Iterable[bytes]) -> None:
        """Lines as the guardian sends them: wall, stream, text, repaint, how many were dropped just before."""
        for record in records:
            wall, stream, text, repaint, dropped = json.loads(record)
            self.cursor += dropped + 1
            self._lines.append(LogLine(wall, stream, text, self.cursor, dropped, repaint))
            self._bytes += len(text)
        while len(self._lines) > RING_LINES or self._bytes > RING_BYTES:
            self._bytes -= len(self._lines.popleft().text)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def close(self) -> None:
        self._closed = True
        self._wake()

    def follow(self, cursor: int) -> AsyncIterator[LogLine]:
        return _Follower(self, cursor)

    async def after(self, cursor: int) -> list[LogLine]:
        """The kept lines after ``cursor``, waiting for one; empty when there will be none."""
        while True:
            newer = takewhile(lambda line: line.cursor > cursor, reversed(self._lines))
            if (found := list(newer)) or self._closed:
                return found[::-1]
            await self._changed.wait()


class _Follower:
    """A reader of a ring. Not a generator: one that is dropped half-way has nothing to clean up."""

    def __init__(self, ring: LogRing, cursor: int) -> None:
        self._ring = ring
        self._cursor = cursor
        self._ahead: deque[LogLine] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogLine:
        if not self._ahead:
            self._ahead.extend(await self._ring.after(self._cursor))
        if not self._ahead:
            raise StopAsyncIteration
        line = self._ahead.popleft()
        gap, self._cursor = line.cursor - self._cursor - 1, line.cursor
        return line if gap == line.dropped else replace(line, dropped=gap)


class StoredLog:
    """The log of a unit that is not of this run, read when first asked for."""

    def __init__(self, read: Callable[[], Awaitable[list[LogLine]]]) -> None:
        self._read = read
        self._lines: deque[LogLine] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogLine:
        if self._lines is None:
            self._lines = deque(await self._read())
        if not self._lines:
            raise StopAsyncIteration
        return self._lines.popleft()


def stored_lines(log_path: str) -> Iterator[LogLine]:
    """What the files of a unit hold: the first 1 MiB and the last 3 MiB, whole lines. Lines a full disk lost count."""
    cursor = lost = 0
    for text in _stored(log_path):
        stamp, _, rest = text.partition(" ")
        stream, _, words = rest.partition(" ")
        if stamp == "-" and stream == "gap":
            lost += int(words.split()[0])
        elif stamp[:1].isdigit():
            cursor += lost + 1
            yield LogLine(dt.datetime.fromisoformat(stamp).timestamp(), stream, words, cursor, lost)
            lost = 0


def _stored(log_path: str) -> Iterator[str]:
    yield from _read(log_path, 0, 2 * _HEAD_READ_BYTES)
    left = _TAIL_READ_BYTES
    blocks: list[list[str]] = []
    for path in (f"{log_path}.tail", f"{log_path}.tail.1"):
        size = os.path.getsize(path) if os.path.exists(path) else 0
        take = min(size, left)
        left -= take
        lines = _read(path, size - take, take) if take else []
        blocks.append(lines[1:] if take < size else lines)
    for block in reversed(blocks):
        yield from block


def _read(path: str, start: int, count: int) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(count).decode("utf-8", "replace").split("\n")
    except OSError:
        return []
