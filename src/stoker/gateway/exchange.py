"""One request of a client and its answer: framing, backpressure, the client's leaving (R-52, R-53, R-68, R-83).

The application writes through this and not through ASGI's ``send``, because ASGI can neither abort an answer nor
tell at once that a client left. Bytes are collected and go out in one write when `flush` is called. Status line,
length and body always agree: a body that would not is cut by an abort of the connection.
"""

from __future__ import annotations

import http
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from stoker.gateway.bodies import Intake
from stoker.gateway.errors import Answer
from stoker.gateway.heads import Head

_STATUS_LINES = {code: f"HTTP/1.1 {code} ".encode() + b"\r\n" for code in range(100, 600)}
_STATUS_LINES |= {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}
_NO_BODY = frozenset({204, 304})


class Line(Protocol):
    """The connection an exchange belongs to."""

    def write(self, data: bytes) -> None: ...
    def exchange_over(self, exchange: Exchange) -> None: ...
    def go_on(self, exchange: Exchange, rest: Coroutine[Any, Any, None]) -> None:
        """Let a task of this connection do the ``rest`` of serving ``exchange``."""
        ...

    def abort(self) -> None: ...


class Exchange:
    """``on_gone`` is called once, at once, when the client leaves before the answer is complete."""

    __slots__ = (
        "_chunked", "_left", "_out", "head", "intake", "is_complete", "is_gone", "is_started", "keep_alive", "line",
        "local_address", "method", "on_gone", "on_resume", "on_write_paused", "peer", "probe_comment", "sent_bytes",
        "status", "target", "write_paused",
    )  # fmt: skip

    def __init__(self, line: Line, method: str, target: bytes, head: Head, intake: Intake, *, keep_alive: bool) -> None:
        self.line = line
        self.method = method
        self.target = target
        self.head = head
        self.intake = intake
        self.keep_alive = keep_alive
        self.local_address: str | None = None
        self.peer = ""
        self.is_started = self.is_complete = self.is_gone = False
        self.write_paused = False
        self.on_gone: Callable[[], None] | None = None
        self.on_write_paused: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.probe_comment: bytes | None = None
        self.status = 0
        self.sent_bytes = 0
        self._out: list[bytes] = []
        self._left: int | None = None
        self._chunked = False

    def start(self, status: int, block: bytes, length: int | None) -> None:
        """The head. ``length`` None: chunked for HTTP/1.1, ended by close for HTTP/1.0 (R-53)."""
        self.is_started = True
        self.status = status
        out = self._out
        out += (_STATUS_LINES[status], block)
        if length is not None:
            if status not in _NO_BODY:
                out.append(b"content-length: %d\r\n" % length)
            self._left = 0 if status in _NO_BODY else length
        elif status in _NO_BODY:
            self._left = 0
        elif self.head.http10:
            self.keep_alive = False
        else:
            self._chunked = True
            out.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            out.append(b"connection: close\r\n")
        elif self.head.http10:
            out.append(b"connection: keep-alive\r\n")
        out.append(b"\r\n")

    def write(self, data: bytes) -> None:
        size = len(data)
        self.sent_bytes += size
        if not size or self.method == "HEAD":
            return
        if self._chunked:
            self._out += (b"%x\r\n" % size, data, b"\r\n")
            return
        if self._left is not None:
            if size > self._left:
                self.abort()
                return
            self._left -= size
        self._out.append(data)

    def write_chunk(self, data: bytes, chunk: bytes) -> None:
        """As `write`; ``chunk`` is ``data`` as one chunk of HTTP, which goes out as it is where chunks are sent."""
        if not self._chunked or self.method == "HEAD":
            self.write(data)
            return
        self.sent_bytes += len(data)
        self._out.append(chunk)

    def flush(self) -> None:
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            if not self.is_gone:
                self.line.write(data)

    def finish(self) -> None:
        """The answer is complete; a body shorter than promised aborts the connection instead (R-69)."""
        if self.is_complete or self.is_gone:
            return
        if self._left and self.method != "HEAD":
            self.abort()
            return
        if self._chunked and self.method != "HEAD":
            self._out.append(b"0\r\n\r\n")
        self.is_complete = True
        self.flush()
        self.line.exchange_over(self)

    def answer(self, answer: Answer, extra: bytes = b"") -> None:
        """A whole answer of our own."""
        self.start(answer.status, answer.block + extra, len(answer.body))
        self.write(answer.body)
        self.finish()

    def abort(self) -> None:
        """Cut the connection: what the client got is not to be taken for whole."""
        self.is_gone = True
        self._out.clear()
        self.line.abort()

    def drop(self) -> None:
        """Nobody serves this any more: its body's room comes back, and an answer that is not complete is cut."""
        self.intake.close()
        if not self.is_complete and not self.is_gone:
            self.abort()

    def gone(self) -> None:
        """The connection says that the client left."""
        if self.is_gone or self.is_complete:
            return
        self.is_gone = True
        callback, self.on_gone = self.on_gone, None
        if callback is not None:
            callback()

    def set_paused(self, *, paused: bool) -> None:
        self.write_paused = paused
        callback = self.on_write_paused if paused else self.on_resume
        if callback is not None:
            callback()

    def send_continue(self) -> None:
        """R-56: asked first, answered when the body is first wanted."""
        if self.head.expect == b"100-continue" and not self.head.http10 and not self.intake.received_bytes:
            self.line.write(b"HTTP/1.1 100 Continue\r\n\r\n")
