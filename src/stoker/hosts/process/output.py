"""A unit's output in its guardian: bytes to clean lines, lines to files and the log channel (S-49 to S-51).

Loaded by the guardian from beside it, so the standard library only. Nothing here ever waits: a reader that lags, a full
disk and a flood all cost lines, oldest first, and every gap is counted. It does not know what a line means, nor who
reads it. A disk that hangs (not: that is full) hangs the write.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

LINE_BYTES = 16 * 1024
HEAD_BYTES, TAIL_BYTES = 1 << 20, 10 << 20
CHANNEL_BYTES = 1 << 20
READ_BYTES = 1 << 16
PARTIAL_S, REPAINT_FILE_S = 0.2, 1.0
CUT_MARK, SECRET_MARK = " [cut]", "[secret]"
_LINE_COST_BYTES = 64

_END_OF_LINE = re.compile(rb"(\r\n|\n|\r(?!\Z))")  # a CR that is the last byte may be half of a CRLF
_HALF_CHARACTER = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z")
_UNPRINTABLE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # device control strings
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)


class Outlet:
    """A socket written without waiting; ``pending`` is what its reader has not taken yet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.pending = b""
        self.closed = False

    def flush(self, more: Callable[[], bytes] = bytes) -> None:
        while not self.closed:
            self.pending = self.pending or more()
            if not self.pending:
                return
            try:
                self.pending = self.pending[self.sock.send(self.pending) :]
            except BlockingIOError:
                return
            except OSError:
                self.closed, self.pending = True, b""


class Channel(Outlet):
    """Messages, one JSON object a line, both ways."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._inbox = b""

    def say(self, word: str, **fields: Any) -> None:
        if not self.closed:
            self.pending += json.dumps({"word": word, **fields}).encode() + b"\n"
            self.flush()

    def half_close(self) -> None:
        """Say no more: the other side reads the end, and we still hear its last words."""
        self.pending, self.closed = b"", True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that are complete now; None when the other side is gone."""
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None


class Log:
    """Where lines go. The channel's queue is bounded; the files are a head of 1 MiB and two rotating tails."""

    def __init__(self, sock: socket.socket, path: str = "") -> None:
        self.out = Outlet(sock)
        self.path = path
        self._queue: deque[tuple[float, str, str, bool]] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._block: list[str] = []
        self._lost = 0

    def add(self, stream: str, text: str, *, repaint: bool, stored: bool) -> None:
        wall = time.time()
        self._queue.append((wall, stream, text, repaint))
        self._queued_bytes += len(text) + _LINE_COST_BYTES
        while self._queued_bytes > CHANNEL_BYTES:
            self._queued_bytes -= len(self._queue.popleft()[2]) + _LINE_COST_BYTES
            self._dropped += 1
        if stored:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall))
            self._block.append(f"{stamp}.{int(wall % 1 * 1000):03d}Z {stream} {text}\n")

    def flush(self) -> None:
        """Write the block to its file and as many lines to the channel as it takes."""
        self._save()
        self.out.flush(self._next)

    def _next(self) -> bytes:
        if not self._queue:
            return b""
        line = self._queue.popleft()
        self._queued_bytes -= len(line[2]) + _LINE_COST_BYTES
        dropped, self._dropped = self._dropped, 0
        return json.dumps([*line, dropped]).encode() + b"\n"

    def _save(self) -> None:
        lines, self._block = self._block, []
        if not lines:
            return
        gap = f"\n- gap {self._lost} lines\n" if self._lost else ""
        data = (gap + "".join(lines)).encode()
        try:
            written = _append(self._file(), data)
        except OSError:
            written = 0
        self._lost = 0 if written == len(data) else self._lost + len(lines)

    def _file(self) -> str:
        tail = f"{self.path}.tail"
        if _size(self.path) < HEAD_BYTES:
            return self.path
        if _size(tail) >= TAIL_BYTES:
            os.replace(tail, f"{tail}.1")
        return tail


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _append(path: str, data: bytes) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


class Stream:
    """One pipe's bytes to lines: LF, CR and CRLF each end one; long ones are cut, late ones delivered in part (S-50).

    ``due`` is when the partial line must go out. Secrets are replaced before anything sees the text (S-48).
    """

    def __init__(self, name: str, fd: int, log: Log, secrets: Sequence[str]) -> None:
        os.set_blocking(fd, False)
        self.due = math.inf
        self._fd = fd
        self._name = name
        self._log = log
        self._secrets = sorted(filter(None, secrets), key=len, reverse=True)
        self._rest = b""
        self._skip_newline = False
        self._repaint_at = -math.inf

    def read(self) -> bool:
        """Take what is there; False at the end of the pipe."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return True
        if data:
            self.feed(data)
        else:
            self.partial(final=True)
        return bool(data)

    def drain(self, most_bytes: int) -> None:
        """The last words of a unit that is gone; a stranger may still hold the other end, so not "until the end"."""
        for _ in range(most_bytes // READ_BYTES + 1):
            if not self.read():
                return
        self.partial(final=True)

    def feed(self, data: bytes) -> None:
        if self._skip_newline:
            data, self._skip_newline = data.removeprefix(b"\n"), False
        *ended, self._rest = _END_OF_LINE.split(self._rest + data)
        for line, end in zip(ended[::2], ended[1::2], strict=True):
            self._show(line, repaint=end == b"\r")
        while len(self._rest) > LINE_BYTES:
            self._rest = self._cut(self._rest)
        if not self._rest:
            self.due = math.inf
        elif ended or self.due == math.inf:
            self.due = time.monotonic() + PARTIAL_S

    def partial(self, *, final: bool = False) -> None:
        """Deliver what has no end yet, but no half character and no half secret before the very end."""
        end = len(self._rest) if final else self._whole(self._rest)
        part, self._rest, self.due = self._rest[:end], self._rest[end:], math.inf
        self._skip_newline = part.endswith(b"\r")  # the LF of a slow CRLF ends nothing
        if part:
            self._show(part.removesuffix(b"\r"), repaint=self._skip_newline)

    def _whole(self, piece: bytes) -> int:
        half = _HALF_CHARACTER.search(piece, max(0, len(piece) - 3))
        held = len(half.group()) if half else 0
        for secret in (value.encode() for value in self._secrets):
            prefix = next((n for n in range(len(secret) - 1, 0, -1) if piece.endswith(secret[:n])), 0)
            held = max(held, prefix)
        return len(piece) - held

    def _show(self, line: bytes, *, repaint: bool) -> None:
        while len(line) > LINE_BYTES:
            line = self._cut(line)
        self._add(line, repaint=repaint)

    def _cut(self, line: bytes) -> bytes:
        end = self._whole(line[:LINE_BYTES]) or LINE_BYTES
        self._add(line[:end], mark=CUT_MARK)
        return line[end:]

    def _add(self, line: bytes, *, repaint: bool = False, mark: str = "") -> None:
        text = _UNPRINTABLE.sub("", line.decode("utf-8", "replace"))
        for secret in self._secrets:
            text = text.replace(secret, SECRET_MARK)
        if repaint and not text:
            return  # the CR that opens a progress line
        now = time.monotonic()
        stored = not repaint or now - self._repaint_at >= REPAINT_FILE_S
        if repaint and stored:
            self._repaint_at = now
        self._log.add(self._name, text + mark, repaint=repaint, stored=stored)
