"""The control API as a listener of the daemon: bound at construction, served until stopped (C-1, C-43).

The application is built when the first caller comes, and callers wait in the backlog until it is. Its imports are slow
and hold a quarter of the daemon's memory: a daemon that only serves models never pays for them, and no start waits.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.to_thread

from stoker.control import sockets
from stoker.observability.scrub import Scrubber

if TYPE_CHECKING:
    from stoker.control.listener import Listener
    from stoker.runtime.wiring import Runtime


class ControlSurface:
    """`stoker.runtime.daemon.Surface` of the control API. ``tcp`` empty: no TCP listener.

    Raises:
        HostError: ``bind-failed``.
        UsageError: ``invalid-config`` for a TCP address that is not loopback.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        socket_path: str,
        tcp: str,
        token: str,
        config_view: Callable[[], Mapping[str, Any]],
        scrubber: Scrubber | None = None,
    ) -> None:
        self._runtime = runtime
        self._token = token
        self._config_view = config_view
        self._scrubber = scrubber
        self._closing = anyio.Event()
        self._listener: Listener | None = None
        self._fault: BaseException | None = None
        self._path = os.path.abspath(socket_path)
        self._sockets: list[socket.socket] = [sockets.bind_unix(socket_path)]
        self._inode = os.lstat(self._path).st_ino
        self.addresses = {"control": socket_path}
        if tcp:
            try:
                self._sockets.append(sockets.bind_tcp(tcp))
            except BaseException:
                self._close()
                raise
            self.addresses["control_tcp"] = sockets.url_of(self._sockets[-1])

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Serve until `stop`. Raises the kernel's fault, if a request met one."""
        task_status.started()
        try:
            await self._called()
            if not self._closing.is_set():
                self._listener = await anyio.to_thread.run_sync(self._build)
            if self._listener is not None and not self._closing.is_set():
                await self._listener.serve_on(self._sockets)
        finally:
            self._close()
        if self._fault is not None:
            raise self._fault

    async def stop(self) -> None:
        """End every stream and take no more callers; `run` returns when what runs has ended."""
        self._closing.set()
        if self._listener is not None:
            self._listener.stop()

    async def _called(self) -> None:
        """Return when somebody connects, or at `stop`."""
        async with anyio.create_task_group() as tasks:

            async def first(waiting: Callable[[], Awaitable[None]]) -> None:
                await waiting()
                tasks.cancel_scope.cancel()

            tasks.start_soon(first, self._closing.wait)
            for line in self._sockets:
                tasks.start_soon(first, partial(anyio.wait_readable, line))

    def _build(self) -> Listener:
        """In a thread: these imports are most of the start."""
        from stoker.control.app import create_app
        from stoker.control.listener import Listener

        app = create_app(
            self._runtime,
            config_view=self._config_view,
            token=self._token,
            scrubber=self._scrubber,
            closing=self._closing,
            on_fault=self._on_fault,
        )
        app.build_middleware_stack()
        app.openapi()
        return Listener(app)

    def _on_fault(self, fault: BaseException) -> None:
        self._fault = fault
        self._closing.set()
        if self._listener is not None:
            self._listener.stop()

    def _close(self) -> None:
        for line in self._sockets:
            line.close()
        sockets.remove(self._path, self._inode)
