"""The HTTP server under the control API: uvicorn, told to stay out of the way (C-1)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stoker.control.auth import PEER_UID, peer_uid
from stoker.errors import ErrorCode

_GRACE_S = 2


class ControlProtocol(HttpToolsProtocol):
    """Notes who is at the other end of a Unix connection, and answers broken HTTP as everything else is answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        line = transport.get_extra_info("socket")
        if line is not None and line.family == socket.AF_UNIX:
            with socket.fromfd(line.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as own:
                self.app_state = {**self.app_state, PEER_UID: peer_uid(own)}

    def on_headers_complete(self) -> None:
        """An absolute target names a host of its own: it counts as one more Host field, and two are refused (R-51)."""
        if not self.url.startswith(b"/"):
            self.headers.append((b"host", self.url))
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - says less than ours
        code = ErrorCode.MALFORMED_REQUEST
        members = {
            "type": f"errors#{code}", "status": 400, "code": str(code), "message": "This is not an HTTP request.",
            "remedy": "Speak HTTP/1.1.", "details": {},
        }  # fmt: skip
        body = json.dumps(members).encode()
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()


class Listener(uvicorn.Server):
    """Serves an application on sockets that are bound already; signals stay the daemon's."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=ControlProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )

    async def serve_on(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until `stop`; requests that run have two seconds to end."""
        await self.serve(sockets=list(sockets))

    def stop(self) -> None:
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
