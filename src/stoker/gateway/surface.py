"""The gateway as a listener of the daemon: bound at construction, served until stopped (R-50, R-102)."""

from __future__ import annotations

import ipaddress
import os
import socket

import anyio
import anyio.abc

from stoker.errors import ErrorCode, error_for
from stoker.gateway.asgi import Gateway
from stoker.gateway.server import GatewayServer, bind_tcp, bind_unix


class GatewaySurface:
    """`stoker.runtime.daemon.Surface` of a `Gateway`.

    Raises:
        HostError: ``bind-failed``.
        UsageError: ``invalid-config`` for an address others can reach while nothing asks who they are.
    """

    def __init__(
        self, gateway: Gateway, *, host: str, port: int, path: str = "", allow_anonymous_network: bool = False
    ) -> None:
        if not allow_anonymous_network and not _is_loopback(host):
            raise error_for(
                ErrorCode.INVALID_CONFIG,
                f"gateway.host is {host}, which other machines can reach, and no key is asked for.",
                remedy="Use 127.0.0.1, or set gateway.allow_anonymous_network = true.",
                param="gateway.host",
            )
        self._server = GatewayServer(gateway)
        self._sockets: list[socket.socket] = [bind_tcp(host, port)]
        bound = self._sockets[0].getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.addresses = {"gateway": f"http://{shown}:{bound[1]}"}
        if path:
            if os.path.exists(path):
                os.unlink(path)
            self._sockets.append(bind_unix(path))
            self.addresses["gateway_socket"] = path

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._server.serve, self._sockets)
            await self._server.started()
            task_status.started()

    async def stop(self) -> None:
        self._server.stop()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
