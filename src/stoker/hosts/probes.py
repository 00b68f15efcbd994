"""Short HTTP calls to engines, off the request path: readiness, liveness, properties (S-100).

A fresh connection each, no redirects, no body beyond its bound. Every failure is an answer (`NoReply`), never an
exception, so that a probe can fail nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import anyio
import anyio.abc
import httptools

from stoker.ports.units import Endpoint
from stoker.ports.upstream import NoReply, Reply

_READ_BYTES = 65536


class HttpProbes:
    """`stoker.ports.upstream.Probes` over loopback TCP and Unix sockets; runs on any anyio backend."""

    async def call(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        *,
        token: str | None,
        body: bytes = b"",
        timeout_s: float = 2.0,
        max_bytes: int = 1 << 20,
    ) -> Reply | NoReply:
        """One exchange within ``timeout_s``. The engine's answer, whatever its status, or why there is none."""
        started = anyio.current_time()
        with anyio.move_on_after(timeout_s):
            try:
                async with await _connect(endpoint) as stream:
                    await stream.send(_request(method, path, token, body))
                    return await _read(stream, max_bytes, started)
            except httptools.HttpParserError:
                return NoReply("bad-answer")
            except (FileNotFoundError, ConnectionRefusedError):
                return NoReply("refused")
            except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
                return NoReply("reset")
        return NoReply("timeout")


async def _connect(endpoint: Endpoint) -> anyio.abc.ByteStream:
    if endpoint.socket is not None:
        return await anyio.connect_unix(endpoint.socket)
    return await anyio.connect_tcp(endpoint.host, endpoint.port, happy_eyeballs_delay=math.inf)


def _request(method: str, path: str, token: str | None, body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", "Accept-Encoding: identity"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass(slots=True)
class _Answer:
    """What httptools calls back with."""

    most: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, piece: bytes) -> None:
        self.body += piece[: max(0, self.most - len(self.body))]

    def on_message_complete(self) -> None:
        self.whole = True


async def _read(stream: anyio.abc.ByteStream, most: int, started: float) -> Reply | NoReply:
    answer = _Answer(most)
    parser = httptools.HttpResponseParser(answer)
    while not answer.whole:
        try:
            parser.feed_data(await stream.receive(_READ_BYTES))
        except anyio.EndOfStream:
            if "content-length" in answer.headers or not answer.headers:
                return NoReply("reset")
            break  # an answer that ends with its connection
    elapsed_ms = (anyio.current_time() - started) * 1000
    return Reply(parser.get_status_code(), answer.headers, bytes(answer.body), elapsed_ms)
