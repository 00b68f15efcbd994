"""The gateway's listener: uvicorn set up to stay out of the way, on sockets that we bind (R-50, R-102)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from stoker.errors import ErrorCode, StokerError, error_for
from stoker.gateway.asgi import Gateway
from stoker.gateway.protocol import GatewayProtocol

BACKLOG = 2048
_LOOK_S = 0.01
_CUT_S = 1.0


class GatewayServer:
    """Runs a `Gateway` on bound sockets inside a running asyncio loop, uvloop's in production."""

    def __init__(self, gateway: Gateway, *, drain_s: float = 5.0) -> None:
        config = uvicorn.Config(
            gateway,
            http=GatewayProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
        )
        self._server = _Quiet(config, drain_s)

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until `stop`; requests under way have ``drain_s`` to end."""
        await self._server.serve(sockets=list(sockets))

    @property
    def is_started(self) -> bool:
        return self._server.started

    async def started(self) -> None:
        """Returns when connections are taken."""
        while not self._server.started:  # noqa: ASYNC110 - uvicorn tells by a flag
            await asyncio.sleep(0.005)

    def stop(self) -> None:
        self._server.stopping.set()


class _Quiet(uvicorn.Server):
    """Uvicorn's server without its ticking and without its hold on the process's signals, which are the daemon's."""

    def __init__(self, config: uvicorn.Config, drain_s: float) -> None:
        super().__init__(config)
        self.drain_s = drain_s
        self.stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new connections; requests under way have ``drain_s`` to end, then they are cut."""
        for server in self.servers:
            server.close()
        for line in sockets or []:
            line.close()
        state = self.server_state
        for connection in tuple(state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.drain_s
        while (state.connections or state.tasks) and loop.time() < end:  # noqa: ASYNC110 -- as above
            await asyncio.sleep(_LOOK_S)
        for task in tuple(state.tasks):
            task.cancel()
        for connection in tuple(state.connections):
            connection.transport.abort()
        if state.tasks:
            await asyncio.wait(tuple(state.tasks), timeout=_CUT_S)


def bind_tcp(host: str, port: int) -> socket.socket:
    """A listening address; port 0 takes a free one. Raises ``bind-failed``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    line = socket.socket(family, socket.SOCK_STREAM)
    try:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind((host, port))
    except OSError as exc:
        line.close()
        raise _bind_failed(f"{host}:{port}", exc) from exc
    line.setblocking(False)
    return line


def bind_unix(path: str) -> socket.socket:
    """A Unix socket for the owner alone; an old socket file at ``path`` must be gone. Raises ``bind-failed``."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.bind(path)
    except OSError as exc:
        line.close()
        raise _bind_failed(path, exc) from exc
    line.setblocking(False)
    return line


def _bind_failed(where: str, exc: OSError) -> StokerError:
    return error_for(
        ErrorCode.BIND_FAILED,
        f"The gateway cannot listen on {where}: {exc.strerror}.",
        remedy="Choose another address, or stop the program that uses this one.",
    )
