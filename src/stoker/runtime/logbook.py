"""An engine's own words, from our files and from the live unit (S-24, S-51).

A replica's log answers with its live session, else its last attempt, and says which. Files outlive units, so removing
a unit loses nothing. The daemon's own log is the one without a subject.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio

from stoker.domain.log_retention import LogFiles, expired
from stoker.errors import ErrorCode, error_for
from stoker.ids import Generation
from stoker.ports.journal import Journal
from stoker.ports.threads import Threads
from stoker.ports.units import LogLine, Units
from stoker.runtime.kernel import Kernel
from stoker.runtime.launching import Life

_LINE = re.compile(r"(\S+Z) (out|err) (.*)")
_FOLLOW_POLL_S = 0.25
_READ_BYTES = 4 << 20
_ATTEMPTS = 500


@dataclass(frozen=True, slots=True)
class Logbook:
    kernel: Kernel
    journal: Journal
    units: Units
    folders: Life
    daemon_log: str
    threads: Threads

    async def read(
        self, subject: str | Generation | None, *, tail: int, follow: bool
    ) -> AsyncIterator[LogLine | Mapping[str, Any]]:
        """First which life answers, then its last ``tail`` lines, then, with ``follow``, new ones as they come.

        Raises:
            UsageError: ``deployment-not-found``, ``session-not-found``.
        """
        if subject is None:
            yield {"subject": "daemon", "path": self.daemon_log}
            async for line in _follow_file(self.threads, self.daemon_log, tail, follow=follow):
                yield line
            return
        told, generation = await self._which(subject)
        yield told
        for line in await self.threads(_last_lines, self._files(generation), tail):
            yield line
        session = self.kernel.state.sessions.get(generation)
        if follow and session is not None and session.unit is not None:
            cursor = await self._end_cursor(session.unit)
            async for line in self.units.logs(session.unit, cursor):
                yield line

    async def _end_cursor(self, unit: Any) -> int:
        """The last line already in memory, so that following does not repeat what the files showed."""
        cursor = 0
        with anyio.move_on_after(0.05):
            async for line in self.units.logs(unit, 0):
                cursor = line.cursor
        return cursor

    async def _which(self, subject: str | Generation) -> tuple[Mapping[str, Any], Generation]:
        state = self.kernel.state
        if isinstance(subject, int):
            if subject in state.sessions or self._files(Generation(subject)):
                return {"subject": "session", "generation": subject, "live": subject in state.sessions}, subject
            raise error_for(ErrorCode.SESSION_NOT_FOUND, f"There is no session {subject} and no log of it.")
        deployment = self.kernel.orders.deployment(subject)
        live = state.of(deployment)
        if live:
            generation = live[0].generation
            return {
                "subject": "session",
                "deployment": deployment.name,
                "generation": generation,
                "live": True,
            }, generation
        attempts = await self.journal.attempts(deployment.name, None, 1)
        if not attempts:
            raise error_for(
                ErrorCode.SESSION_NOT_FOUND,
                f"{deployment.name} has never been loaded, so there is no log.",
                remedy=f"Load it with `stoker load {deployment.name}`.",
            )
        last = attempts[0]
        told = {
            "subject": "attempt", "deployment": deployment.name, "generation": last.generation, "live": False,
            "outcome": last.outcome, "message": last.message,
        }  # fmt: skip
        return told, last.generation

    async def prune(self, wall: float) -> None:
        """Delete the engine logs that may go (S-23)."""
        state = self.kernel.state
        replica_of: dict[Generation, tuple[str, int]] = {}
        protected = set(state.sessions)
        for name in list(state.deployments):
            last_failed: dict[int, Generation] = {}
            for attempt in await self.journal.attempts(name, None, _ATTEMPTS):  # newest first
                replica_of[attempt.generation] = (name, attempt.replica)
                if attempt.outcome == "failed":
                    last_failed.setdefault(attempt.replica, attempt.generation)
            protected.update(last_failed.values())
        replica_of.update({g: (s.state.deployment, s.state.replica) for g, s in state.sessions.items()})
        await self.threads(self._delete, replica_of, protected, wall)

    def _delete(
        self, replica_of: Mapping[Generation, tuple[str, int]], protected: set[Generation], wall: float
    ) -> None:
        logs = []
        names = {name.partition(".")[0] for name in self.folders.list_folders(self.folders.logs)}
        for generation in (Generation(int(name)) for name in names if name.isdecimal()):
            stats = [os.stat(path) for path in self._files(generation)]
            if stats:
                size, written = sum(s.st_size for s in stats), max(s.st_mtime for s in stats)
                logs.append(LogFiles(generation, size, written))
        for generation in expired(logs, replica_of=replica_of, protected=protected, wall=wall):
            for path in self._files(generation):
                os.unlink(path)

    def _files(self, generation: Generation) -> list[str]:
        """The head and the rotated tails of one life's log, oldest first."""
        base = self.folders.log_path(generation)
        return [path for path in (base, base + ".tail.1", base + ".tail") if os.path.exists(path)]


def _last_lines(paths: list[str], tail: int) -> list[LogLine]:
    lines: deque[LogLine] = deque(maxlen=max(0, tail))
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                lines.append(_parse(text.rstrip("\n")))
    return list(lines)


def _parse(text: str) -> LogLine:
    found = _LINE.fullmatch(text)
    if found is None:
        return LogLine(0.0, "out", text, 0)
    wall = datetime.fromisoformat(found[1]).timestamp()
    return LogLine(wall, found[2], found[3], 0)


async def _follow_file(threads: Threads, path: str, tail: int, *, follow: bool) -> AsyncIterator[LogLine]:
    """The last lines of a plain file, then what is appended."""
    try:
        lines, offset = await threads(_plain_tail, path, tail)
    except FileNotFoundError:
        return
    for text in lines:
        yield LogLine(0.0, "out", text, 0)
    while follow:
        await anyio.sleep(_FOLLOW_POLL_S)
        lines, offset = await threads(_plain_since, path, offset)
        for text in lines:
            yield LogLine(0.0, "out", text, 0)


def _plain_tail(path: str, tail: int) -> tuple[list[str], int]:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _READ_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return lines[-tail:] if tail else [], size


def _plain_since(path: str, offset: int) -> tuple[list[str], int]:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < offset:  # rotated
            offset = 0
        file.seek(offset)
        data = file.read(_READ_BYTES)
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode("utf-8", "replace").splitlines(), offset + len(whole)
