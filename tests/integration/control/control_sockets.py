"""The control surface on real sockets, over a runtime on fakes; and bytes as a careless client sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from control_rig import CONFIG, TOKEN, Rig, running

from stoker.control.server import ControlSurface


async def _serve(surface: ControlSurface, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await surface.run(task_status=task_status)


def make(rig: Rig, folder: Path, tcp: str = "127.0.0.1:0") -> ControlSurface:
    return ControlSurface(
        rig.runtime, socket_path=str(folder / "run" / "control.sock"), tcp=tcp, token=TOKEN, config_view=lambda: CONFIG
    )


@asynccontextmanager
async def serving(folder: Path, tcp: str = "127.0.0.1:0", **of_rig: Any) -> AsyncIterator[tuple[Rig, ControlSurface]]:
    async with running(make_app=False, **of_rig) as rig:
        surface = make(rig, folder, tcp)
        async with anyio.create_task_group() as tasks:
            await tasks.start(_serve, surface)
            yield rig, surface
            await surface.stop()


class Raw:
    """One connection, and nothing between the test and the bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def unix(cls, surface: ControlSurface) -> Raw:
        return cls(*await asyncio.open_unix_connection(surface.addresses["control"]))

    @classmethod
    async def tcp(cls, surface: ControlSurface) -> Raw:
        host, port = surface.addresses["control_tcp"].removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def say(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def until(self, mark: bytes) -> bytes:
        with anyio.fail_after(20):
            return await self._reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        with anyio.fail_after(20):
            return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def ask(raw: Raw, head: str, *fields: str, body: bytes = b"") -> bytes:
    """One request, whole, on a connection that ends with it."""
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{head} HTTP/1.1", *fields, *length, "Connection: close", "", ""]
    await raw.say("\r\n".join(lines).encode("latin-1") + body)
    answer = await raw.rest()
    await raw.close()
    return answer
