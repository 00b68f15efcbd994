"""The daemon's own log (C-47): one line a record, scrubbed, bounded in size, never a brake on who writes it.

Everything in the process logs through the standard library; names of others (the server, libraries) keep theirs.
Records go into a bounded queue and are rendered in one thread. A full queue drops its oldest record and the log says
how many. Prompts and answers have no business in a record; this module cannot know one when it sees it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any

from stoker.observability.scrub import Scrubber

QUEUE_RECORDS = 4096
FIELD_CHARACTERS = 2048
FIELDS = 24

# Attributes that every record has; what is beside them was given as ``extra``.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FIRST = ("at", "level", "event", "message", "request_id", "deployment", "generation")

Render = Callable[[Any, str, MutableMapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class LogPlan:
    """``format``: auto, console or json. ``path`` None: no file. ``stream`` None: nothing on standard error."""

    level: str = "info"
    format: str = "auto"
    path: str | None = None
    file_bytes: int = 32 * 2**20
    files: int = 5
    stream: IO[str] | None = None


class DaemonLog:
    """The running log. `start` takes over the root logger; `close` writes what is queued and gives it back."""

    def __init__(self, plan: LogPlan, scrubber: Scrubber) -> None:
        self._plan = plan
        self._scrubber = scrubber
        self._queue: deque[tuple[Mapping[str, Any], str]] = deque()
        self._ready = threading.Condition()
        self._handler = _Handler(self)
        self._thread = threading.Thread(target=self._run, name="stoker-log", daemon=True)
        self._closed = False
        self._untold = 0
        self.dropped = 0  # for stoker_log_dropped_total
        self._before: tuple[list[logging.Handler], int] = ([], logging.WARNING)

    @classmethod
    def start(cls, plan: LogPlan, scrubber: Scrubber) -> DaemonLog:
        log = cls(plan, scrubber)
        root = logging.getLogger()
        log._before = (root.handlers[:], root.level)
        root.handlers[:] = [log._handler]
        log.set_level(plan.level)
        for name in ("uvicorn", "uvicorn.access", "uvicorn.error"):
            other = logging.getLogger(name)
            other.handlers.clear()
            other.setLevel(logging.WARNING)  # that a listener started is said by the daemon itself
            other.propagate = name != "uvicorn.access"  # the request records say more, and say it once
        log._thread.start()
        return log

    def set_level(self, level: str) -> None:
        logging.getLogger().setLevel(level.upper())

    def close(self) -> None:
        """Write what is queued, stop the thread, give the root logger back. Idempotent."""
        with self._ready:
            if self._closed:
                return
            self._closed = True
            self._ready.notify()
        self._thread.join()
        root = logging.getLogger()
        root.handlers[:], level = self._before
        root.setLevel(level)

    def put(self, fields: Mapping[str, Any], trace: str) -> None:
        """Queue one record; drops the oldest when the queue is full. Never waits for the disk."""
        with self._ready:
            if len(self._queue) >= QUEUE_RECORDS:
                self._queue.popleft()
                self.dropped += 1
                self._untold += 1
            self._queue.append((fields, trace))
            self._ready.notify()

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        sinks = self._sinks()
        try:
            while True:
                with self._ready:
                    while not self._queue and not self._closed:
                        self._ready.wait()
                    records = list(self._queue)
                    self._queue.clear()
                    untold, self._untold = self._untold, 0
                    last = self._closed
                if untold:
                    self._write(sinks, _dropped_record(untold), "")
                for fields, trace in records:
                    self._write(sinks, fields, trace)
                for sink, _ in sinks:
                    sink.flush()
                if last:
                    return
        finally:
            for sink, _ in sinks:
                if isinstance(sink, RotatingFile):
                    sink.close()

    def _sinks(self) -> list[tuple[IO[str] | RotatingFile, Render]]:
        plan = self._plan
        sinks: list[tuple[IO[str] | RotatingFile, Render]] = []
        if plan.path is not None:
            file = RotatingFile(plan.path, plan.file_bytes, plan.files)
            sinks.append((file, _renderer(plan.format == "console", colors=False)))
        if plan.stream is not None:
            is_terminal = plan.stream.isatty()
            console = plan.format == "console" or (plan.format == "auto" and is_terminal)
            sinks.append((plan.stream, _renderer(console, colors=is_terminal and "NO_COLOR" not in os.environ)))
        return sinks

    def _write(self, sinks: list[tuple[IO[str] | RotatingFile, Render]], fields: Mapping[str, Any], trace: str) -> None:
        shown = {name: self._scrubber.member(name, value) for name, value in fields.items()}
        if trace:
            shown["trace"] = self._scrubber.text(trace)
        for sink, render in sinks:
            try:
                sink.write(str(render(None, "", dict(shown))) + "\n")
            except (OSError, ValueError):  # a full disk or a closed terminal must not end the log
                with self._ready:
                    self.dropped += 1


class _Handler(logging.Handler):
    """From a standard record to fields, in the thread that logs: arguments may change after it."""

    def __init__(self, log: DaemonLog) -> None:
        super().__init__()
        self._log = log

    def createLock(self) -> None:  # noqa: N802 - the standard library's name
        self.lock = None  # `put` has its own

    def emit(self, record: logging.LogRecord) -> None:
        given = {name: value for name, value in vars(record).items() if name not in _OWN}
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = str(record.msg)
        fields: dict[str, Any] = {
            "at": _stamp(record.created),
            "level": record.levelname.lower(),
            "event": str(given.pop("event", record.name)),
            "message": _bounded(message),
        }
        for name in _FIRST[4:]:
            if name in given:
                fields[name] = _bounded(given.pop(name))
        for name in list(given)[:FIELDS]:
            fields[name] = _bounded(given[name])
        trace = ""
        if record.exc_info and record.exc_info[0] is not None:
            trace = logging.Formatter().formatException(record.exc_info)[-8 * FIELD_CHARACTERS :]
        self._log.put(fields, trace)


class RotatingFile:
    """A 0600 file that becomes ``name.1``, ``name.2`` … when it is full; ``files`` of them in all."""

    def __init__(self, path: str, limit_bytes: int, files: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._files = files
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        os.fchmod(descriptor, 0o600)
        self._file = os.fdopen(descriptor, "ab")
        self._size = os.fstat(descriptor).st_size

    def write(self, text: str) -> int:
        raw = text.encode(errors="backslashreplace")
        if self._size and self._size + len(raw) > self._limit:
            self._rotate()
        self._size += len(raw)
        return self._file.write(raw)

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._files - 1, 0, -1):
            older = f"{self._path}.{number}"
            newer = f"{self._path}.{number - 1}" if number > 1 else self._path
            if os.path.lexists(newer):
                os.replace(newer, older)
        if self._files == 1:
            os.unlink(self._path)
        self._open()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _renderer(console: bool, *, colors: bool) -> Render:
    if not console:
        return lambda _, __, fields: json.dumps(fields, default=repr)
    import structlog  # brings a terminal library with it, so only where lines are for a terminal

    plain = structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="at", event_key="message", sort_keys=False)

    def render(logger: Any, name: str, fields: MutableMapping[str, Any]) -> Any:
        trace = fields.pop("trace", None)
        line = plain(logger, name, fields)
        return f"{line}\n{trace}" if trace else line

    return render


def _dropped_record(count: int) -> dict[str, Any]:
    return {
        "at": _stamp(datetime.now(UTC).timestamp()),
        "level": "warning",
        "event": "log.dropped",
        "message": f"{count} records were dropped because the log could not keep up",
        "dropped": count,
    }


def _stamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bounded(value: Any) -> Any:
    """A field as it may stand in a line: scalars as they are, the rest as text, nothing longer than 2 KiB."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping | list | tuple) and len(repr(value)) <= FIELD_CHARACTERS:
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= FIELD_CHARACTERS else f"{text[:FIELD_CHARACTERS]}… ({len(text)} characters)"
