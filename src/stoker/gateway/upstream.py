"""Connections to engines, one pool for each life of a session (R-65, R-66, T3).

A pool lives exactly as long as its session serves: the runtime opens and closes it. A new life never inherits a
connection, even on the same port. Where an engine listens comes from its door and never from a request.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from stoker.errors import EngineError, ErrorCode, StokerError, error_for
from stoker.gateway.connection import EngineConnection
from stoker.ids import Generation
from stoker.runtime.tickets import Door

CONNECT_S = 2.0
CLOSE_S = 2.0
IDLE_MARGIN_S = 1.0
RECEIVE_BUFFER_BYTES = 64 << 10
SPARE_CONNECTIONS = 2
_SENTENCES = {
    ErrorCode.SESSION_STOPPED: "The session that was answering was stopped before it finished.",
    ErrorCode.ENGINE_EXITED: "The engine exited while it was answering.",
}


class Stoppable(Protocol):
    """An exchange under way that can be ended from outside."""

    def stopped(self, error: StokerError) -> None: ...


class Pool:
    """The connections of one life."""

    __slots__ = ("_idle", "_idle_s", "_live", "_loop", "closed_by", "door", "host_line", "routes", "stops")

    def __init__(self, door: Door, loop: asyncio.AbstractEventLoop) -> None:
        self.door = door
        facts = door.wire.connection
        self._loop = loop
        self.routes = {(r.dialect, r.method, r.path): r for r in door.wire.policy.routes}
        self._idle: list[EngineConnection] = []
        self._live: set[EngineConnection] = set()
        self._idle_s = facts.idle_s - min(IDLE_MARGIN_S, facts.idle_s / 4)
        self.closed_by: StokerError | None = None
        self.stops: set[Stoppable] = set()
        token = b"authorization: Bearer %b\r\n" % door.token.encode() if door.token else b""
        keeps = b"" if facts.http == "1.1" else b"connection: close\r\n"
        self.host_line = b"host: %b\r\naccept-encoding: identity\r\n%b%b" % (facts.host_header.encode(), token, keeps)

    def take(self) -> EngineConnection | None:
        """An idle connection that may still be used, the freshest first; None if there is none."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed and now - connection.idle_since < self._idle_s:
                return connection
            connection.abort()
        return None

    async def connect(self) -> EngineConnection:
        """A fresh connection; raises `EngineError` if the engine does not take one within 2 s."""
        endpoint = self.door.endpoint
        connection = EngineConnection(self._loop)
        try:
            async with asyncio.timeout(CONNECT_S):
                if endpoint.socket:
                    await self._loop.create_unix_connection(lambda: connection, endpoint.socket)
                else:
                    line = await self._tcp(endpoint.host, endpoint.port)
                    await self._loop.create_connection(lambda: connection, sock=line)
        except (OSError, TimeoutError) as exc:
            if self.closed_by is not None:
                raise self.closed_by from exc
            raise EngineError(
                ErrorCode.ENGINE_CONNECTION_LOST,
                f"The engine of {self.door.deployment!r} took no connection within {CONNECT_S:g} s.",
                remedy="Send the request again; the session is being watched.",
            ) from exc
        if self.closed_by is not None:
            connection.abort()
            raise self.closed_by
        self._live.add(connection)
        connection.lost.add_done_callback(lambda _: self._live.discard(connection))
        return connection

    def give_back(self, connection: EngineConnection) -> None:
        """After a whole answer: kept for the next request if the facts allow it."""
        facts = self.door.wire.connection
        full = facts.max_requests and connection.requests >= facts.max_requests
        room = len(self._idle) < self.door.accepted.width + SPARE_CONNECTIONS
        if facts.http != "1.1" or full or not room or self.closed_by is not None or not connection.is_reusable():
            connection.abort()
            return
        connection.resume()
        self._idle.append(connection)

    async def close(self, code: str) -> None:
        """End open exchanges with ``code``, then the connections; returns when they are gone or after 2 s."""
        if self.closed_by is None:
            self.closed_by = _closing_error(code, self.door)
        for stop in tuple(self.stops):
            stop.stopped(self.closed_by)
        live = tuple(self._live)
        for connection in live:
            connection.abort()
        self._idle.clear()
        if live:
            await asyncio.wait([connection.lost for connection in live], timeout=CLOSE_S)

    async def _tcp(self, host: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        line = socket.socket(family, socket.SOCK_STREAM)
        try:
            line.setblocking(False)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                line.connect((host, port))  # a loopback address: most often connected in this very call
            except BlockingIOError:
                await self._loop.sock_connect(line, (host, port))
        except BaseException:
            line.close()
            raise
        return line


class UpstreamPools:
    """`stoker.runtime.uses.Upstreams` of the gateway."""

    def __init__(self) -> None:
        self._pools: dict[Generation, Pool] = {}

    def open(self, door: Door) -> None:
        self._pools[door.generation] = Pool(door, asyncio.get_running_loop())

    def pool(self, door: Door) -> Pool:
        """The pool of that life; raises the error its exchanges end with if it was closed meanwhile."""
        pool = self._pools.get(door.generation)
        if pool is None:
            raise _closing_error(ErrorCode.SESSION_STOPPED, door)
        return pool

    async def close(self, generation: Generation, code: str) -> None:
        pool = self._pools.pop(generation, None)
        if pool is not None:
            await pool.close(code)


def _closing_error(code: str, door: Door) -> StokerError:
    known = ErrorCode(code)
    sentence = _SENTENCES.get(known, f"The session that was answering ended ({code}).")
    return error_for(
        known,
        sentence,
        remedy="Send the request again.",
        details={"deployment": str(door.deployment), "generation": int(door.generation)},
        retry_after_s=1 if known is ErrorCode.SESSION_STOPPED else None,
    )
