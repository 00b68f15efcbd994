"""Both ends of the gateway's benchmark: an engine that costs little, and a client that checks every byte.

The engine answers a chat request with one fixed body, or with a stream whose every byte follows from the request's
seed; so the client knows what must arrive without having seen it. Both are plain asyncio protocols.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httptools

MODEL = "bench"
EVERY_S = 0.05  # one event of a stream
PATH = "/v1/chat/completions"
ANSWER = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"' + b"All is quiet on this machine. " * 4 + b'"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":31,"completion_tokens":28,"total_tokens":59}}'
)
_PROMPT = "Say in one short sentence how things are on this machine, and do not say anything else. " * 2
_HEAD = b"HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT = (
    b'data: {"id":"chatcmpl-%08x","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" word%08x"},"finish_reason":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-%08x","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)
DONE = b"data: [DONE]\n\n"


def event(seed: int, number: int, chunks: int) -> bytes:
    """Event ``number`` of a stream of ``chunks`` events."""
    if number == chunks - 1:
        return DONE
    if number == chunks - 2:
        return _LAST % seed
    return _EVENT % (seed, (seed * 7919 + number) & 0xFFFFFFFF)


def request(port: int, *, seed: int = 0, chunks: int = 0) -> bytes:
    """A chat request of about 300 bytes of body; streamed if ``chunks`` are asked for."""
    stream = '"stream":true,' if chunks else ""
    body = (
        f'{{"model":"{MODEL}",{stream}"seed":{seed},"max_tokens":{chunks or 28},"temperature":0.7,'
        f'"messages":[{{"role":"user","content":"{_PROMPT}"}}]}}'
    ).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer none\r\nUser-Agent: bench\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


# -- the engine ----------------------------------------------------------------------------------------------------


class Engine(asyncio.Protocol):
    """One connection to the engine."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.loop = asyncio.get_running_loop()
        self.body = b""
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.is_closed = True

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.body = b""

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        if b'"stream":true' not in self.body:
            self.transport.write(_HEAD % len(ANSWER) + ANSWER)
            return
        self.transport.write(_STREAM_HEAD)
        self.stream(_number(self.body, b'"seed":'), 0, _number(self.body, b'"max_tokens":'), self.loop.time())

    def stream(self, seed: int, number: int, chunks: int, began: float) -> None:
        if self.is_closed:
            return
        data = event(seed, number, chunks)
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        number += 1
        if number == chunks:
            self.transport.write(b"0\r\n\r\n")
        else:
            self.loop.call_at(began + number * EVERY_S, self.stream, seed, number, chunks, began)


def _number(body: bytes, key: bytes) -> int:
    start = body.index(key) + len(key)
    end = start
    while body[end : end + 1].isdigit():
        end += 1
    return int(body[start:end])


async def serve_engine(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


# -- the client ----------------------------------------------------------------------------------------------------


class Caller(asyncio.Protocol):
    """Sends one request after the other on one connection and keeps each one's seconds."""

    def __init__(self, message: bytes, take: Callable[[], bool], done: asyncio.Future[None]) -> None:
        self.message, self.take, self.done = message, take, done
        self.got = b""
        self.began = 0.0
        self.took_s: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if not self.done.done():
            self.done.set_exception(SystemExit(f"a connection ended early; it held {self.got[:300]!r}"))

    def data_received(self, data: bytes) -> None:
        self.got += data
        if not self.got.endswith(ANSWER):
            if not self.got.startswith(b"HTTP/1.1 200"):
                self.transport.abort()
            return
        self.took_s.append(time.perf_counter() - self.began)
        self._next()

    def _next(self) -> None:
        self.got = b""
        if self.take():
            self.began = time.perf_counter()
            self.transport.write(self.message)
        elif not self.done.done():
            self.done.set_result(None)
            self.transport.close()


async def call_many(port: int, requests: int, connections: int) -> list[float]:
    """Seconds of each of ``requests`` small requests, on ``connections`` kept connections."""
    loop = asyncio.get_running_loop()
    left = requests

    def take() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    callers = [Caller(request(port), take, loop.create_future()) for _ in range(connections)]
    for caller in callers:
        await loop.create_connection(lambda caller=caller: caller, "127.0.0.1", port)  # type: ignore[misc]
    for caller in callers:
        await caller.done
    return [took for caller in callers for took in caller.took_s]


@dataclass
class Arrived:
    """What came of many streams. ``lost_bytes``: missing, too many, or all of a stream that was changed."""

    bytes: int = 0
    reads: int = 0
    lost_bytes: int = 0
    broken: list[str] = field(default_factory=list)


class Listener(asyncio.Protocol):
    """One streamed request, its body hashed as it comes."""

    def __init__(self, message: bytes, done: asyncio.Future[None]) -> None:
        self.message, self.done = message, done
        self.parser = httptools.HttpResponseParser(self)
        self.hash = hashlib.sha256()
        self.bytes = self.reads = 0
        self.problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self.message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._end("cut")

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self.parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        self.hash.update(piece)
        self.bytes += len(piece)

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self._end("" if status == 200 else f"status {status}")
        self.transport.close()

    def _end(self, problem: str) -> None:
        if not self.done.done():
            self.problem = problem
            self.done.set_result(None)


async def listen_many(port: int, streams: int, chunks: int) -> Arrived:
    """``streams`` at once, begun evenly over the time of four events."""
    loop = asyncio.get_running_loop()
    listeners = []
    began = loop.time()
    for seed in range(streams):
        await asyncio.sleep(max(0.0, began + seed * EVERY_S * 4 / streams - loop.time()))
        listener = Listener(request(port, seed=seed, chunks=chunks), loop.create_future())
        listeners.append(listener)
        await loop.create_connection(lambda listener=listener: listener, "127.0.0.1", port)  # type: ignore[misc]
    arrived = Arrived()
    for seed, listener in enumerate(listeners):
        await listener.done
        sent = b"".join(event(seed, number, chunks) for number in range(chunks))
        if listener.problem:
            arrived.broken.append(f"stream {seed}: {listener.problem}")
        if listener.bytes != len(sent):
            arrived.lost_bytes += abs(len(sent) - listener.bytes)
        elif listener.hash.digest() != hashlib.sha256(sent).digest():
            arrived.lost_bytes += len(sent)
        arrived.bytes += listener.bytes
        arrived.reads += listener.reads
    return arrived
