"""One connection to an engine: a request out, an answer in, byte by byte and in order (R-65 to R-69).

Parses with httptools and hands what came to the exchange's sink without tasks or queues. It decides only whether the
connection may be used again; what an answer means is the sink's business. Interim answers are swallowed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import httptools

from stoker.gateway.heads import Fields, is_volatile
from stoker.gateway.knownhead import KnownHead, one_chunk, read_known_head
from stoker.gateway.peek import Buffer

MAX_HEAD_BYTES = 64 << 10
SEND_BYTES = 256 << 10
HIGH_WATER_BYTES, LOW_WATER_BYTES = 64 << 10, 16 << 10


class Sink(Protocol):
    """Who takes the answer. Calls come in this order; nothing comes after ``answer_ended`` or ``answer_broke``."""

    def answer_head(self, status: int, fields: Fields, length: int | None) -> None: ...
    def answer_data(self, piece: bytes) -> None: ...
    def read_done(self) -> None:
        """All pieces of one read were handed over: the moment to write."""
        ...

    def answer_ended(self) -> None: ...
    def answer_broke(self, cause: str, *, had_bytes: bool) -> None:
        """``cause``: ``lost`` (end of file or reset) or ``unreadable``."""
        ...


class _HeadTooLargeError(Exception):
    """Leaves the parser, which takes it for an answer that cannot be read (R-69)."""


class EngineConnection(asyncio.Protocol):
    """``requests`` counts those sent; ``idle_since`` is loop time since when nothing is under way."""

    __slots__ = (
        "_between_chunks", "_body", "_chunk_open", "_closes", "_head_bytes", "_in_body", "_known", "_known_status",
        "_length", "_loop", "_parser", "_until_close", "_write_paused", "fields", "framed", "had_bytes",
        "idle_since", "is_closed", "lost", "requests", "returned", "sink", "transport",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None
        self.sink: Sink | None = None
        self.requests = 0
        self.idle_since = loop.time()
        self.is_closed = False
        self.lost: asyncio.Future[None] = loop.create_future()
        self.fields: Fields = []
        self.had_bytes = False
        self._body: deque[Buffer] = deque()
        self._write_paused = False
        self._in_body = False
        self._closes = False
        self._until_close = False
        self._head_bytes = 0
        self._length: int | None = None  # None: chunked, or up to the end of the connection
        self._chunk_open = self._between_chunks = False
        self._known: KnownHead | None = None
        self._known_status = 0
        self.framed = b""  # the chunk of HTTP that the piece in hand is all of, if it came so
        self.returned: bytes | None = None  # what a client gets of ``fields``: kept as long as they stay

    def send(self, head: bytes, body: list[Buffer], sink: Sink) -> None:
        """Send one request; ``body`` is sent as fast as the engine reads."""
        assert self.transport is not None
        self.sink = sink
        self.requests += 1
        self.had_bytes = self._in_body = self._closes = self._until_close = False
        self._between_chunks = False
        self._head_bytes = 0
        if len(body) == 1 and len(body[0]) <= SEND_BYTES:
            self.transport.write(head + body[0])
            return
        self.transport.write(head)
        for piece in body:
            view = memoryview(piece)
            self._body.extend(view[at : at + SEND_BYTES] for at in range(0, len(view), SEND_BYTES))
        self._pump()

    def is_reusable(self) -> bool:
        """After a whole answer: may another request follow on this connection?"""
        return not (self.is_closed or self._closes or self._body or self._until_close)

    def pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing() and self.transport.is_reading():
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing() and not self.transport.is_reading():
            self.transport.resume_reading()

    def abort(self) -> None:
        """Close now; the engine sees it at once, and no sink hears of it."""
        self.sink = None
        self.is_closed = True
        self._body.clear()
        if self.transport is not None:
            self.transport.abort()

    # -- the transport ---------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        assert self.transport is not None
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES, LOW_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        sink = self.sink
        if sink is None:  # an engine that speaks unasked cannot be trusted with the next request
            self.abort()
            return
        self.had_bytes = True
        is_first = not self._in_body and not self._head_bytes
        if self._between_chunks:
            piece = one_chunk(data)
            if piece is not None:
                self.framed = data
                sink.answer_data(piece)
                self.framed = b""
                sink.read_done()
                return
        elif is_first and self._known is not None:
            body_start = self._known.body_start(data)
            if body_start:
                self._take_known(sink, data[body_start:])
                return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break("unreadable")
            return
        if not self._in_body and self._head_bytes > MAX_HEAD_BYTES and self.sink is sink:
            self._break("unreadable")
            return
        if self._in_body:
            self._between_chunks = (
                self._length is None and not self._until_close and not self._chunk_open and data.endswith(b"\r\n")
            )
        elif is_first and self._length is not None and self.sink is None and self.is_reusable():
            self._known, self._known_status = read_known_head(data, self._length), self._parser.get_status_code()
        sink.read_done()

    def _take_known(self, sink: Sink, body: bytes) -> None:
        """A whole answer with the head of the last one."""
        sink.answer_head(self._known_status, self.fields, len(body))
        if body and self.sink is sink:
            sink.answer_data(body)
        if self.sink is sink:
            self.sink = None
            self.idle_since = self._loop.time()
            sink.answer_ended()
        sink.read_done()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if not self.lost.done():
            self.lost.set_result(None)
        sink = self.sink
        if sink is None:
            return
        if self._until_close and self._in_body and exc is None:
            self.sink = None
            sink.answer_ended()
            sink.read_done()
        else:
            self._break("lost")

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._pump()

    # -- the parser ------------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        self.fields = []
        self._known = self.returned = None
        self._chunk_open = False
        if self.sink is None:  # more than the answer: nothing of it may be taken for the next one's
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if not is_volatile(name):
            self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        if self._head_bytes > MAX_HEAD_BYTES and sum(len(n) + len(v) + 4 for n, v in self.fields) > MAX_HEAD_BYTES:
            raise _HeadTooLargeError
        self._in_body = True
        length: int | None = None
        chunked = False
        for name, value in self.fields:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                chunked = True
        self._closes = not self._parser.should_keep_alive()
        self._until_close = length is None and not chunked and status not in {204, 304}
        self._length = None if chunked else length
        if self.sink is not None:
            self.sink.answer_head(status, self.fields, None if chunked else length)

    def on_body(self, piece: bytes) -> None:
        if self.sink is not None:
            self.sink.answer_data(piece)

    def on_chunk_header(self) -> None:
        self._chunk_open = True

    def on_chunk_complete(self) -> None:
        self._chunk_open = False

    def on_message_complete(self) -> None:
        if not self._in_body:
            return
        self._in_body = False
        sink, self.sink = self.sink, None
        self.idle_since = self._loop.time()
        if sink is not None:
            sink.answer_ended()

    def _break(self, cause: str) -> None:
        sink, self.sink = self.sink, None
        had_bytes = self.had_bytes
        self.abort()
        if sink is not None:
            sink.answer_broke(cause, had_bytes=had_bytes)
            sink.read_done()

    def _pump(self) -> None:
        while self._body and not self._write_paused and not self.is_closed:
            assert self.transport is not None
            self.transport.write(self._body.popleft())
