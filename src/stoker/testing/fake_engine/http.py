"""One client's connection to the fake engine: whole requests in, bytes out, and noticing that the client left.

Decides nothing about answers. Invariants: requests are read one at a time, raw bytes kept; `Connection.idle` is the
only place where time passes while a client may leave.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from stoker.testing.fake_engine.life import Life
from stoker.testing.fake_engine.loop import FOREVER, READ, WRITE, Bell, Wait

LORIS_S = 0.02


@dataclass(slots=True)
class Request:
    method: str
    path: str
    query: str
    version: str
    headers: dict[str, str]
    body: bytes
    raw: bytes


class Connection:
    def __init__(self, life: Life, sock: socket.socket) -> None:
        self.life, self.sock = life, sock
        self.ahead = bytearray()
        self.gone = False
        self.chunked = False

    async def idle(self, until: float, bell: Bell | None = None) -> str:
        """Let time pass and notice a client that leaves: ``time``, ``bell`` or ``gone``."""
        while True:
            watch = None if self.gone or self.ahead else self.sock
            why = await Wait(until, watch, READ, bell)
            if why != "io":
                return why
            if not self._receive() and not self.life.options.runs_on:
                return "gone"

    def _receive(self) -> bool:
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self.ahead += data
        self.gone = not data
        return not self.gone

    async def _more(self, until: float) -> bool:
        return not self.gone and await Wait(until, self.sock) == "io" and self._receive()

    async def read_request(self, idle_s: float) -> Request | None:
        """The next request, whole; None when the client left or said nothing for ``idle_s``."""
        until = time.monotonic() + idle_s
        while (end := self.ahead.find(b"\r\n\r\n")) < 0:
            if not await self._more(until):
                return None
        head = bytes(self.ahead[: end + 4])
        first, *fields = head.decode("latin-1").split("\r\n")[:-2]
        method, target, version = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
        length = int(headers.get("content-length", "0"))
        while len(self.ahead) < len(head) + length:
            if not await self._more(FOREVER):
                return None
        raw = bytes(self.ahead[: len(head) + length])
        del self.ahead[: len(raw)]
        path, _, query = target.partition("?")
        return Request(method, path, query, version, headers, raw[len(head) :], raw)

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.gone:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                await Wait(sock=self.sock, events=WRITE)
            except OSError:
                self.gone = True

    async def spoon(self, data: bytes) -> None:
        """Send as ``slow-loris`` would: byte by byte."""
        for byte in data:
            await self.piece(bytes([byte]))
            if await self.idle(time.monotonic() + LORIS_S) == "gone":
                return

    async def piece(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
