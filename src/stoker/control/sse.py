"""Streams to a caller: events, and lines that are followed (C-13 to C-15).

A stream ends with its source, with its caller, or with the listener; a comment now and then shows that it lives. A
source that refuses before its first item is an ordinary error. A slow caller holds up its own source only.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, cast

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEARTBEAT_S = 15.0
_QUIET_START_S = 0.05


def message(data: Any, *, event: str | None = None, id_: str | None = None) -> bytes:
    """One server-sent event; JSON has no line ends, so its data is one line."""
    head = (f"id: {id_}\n" if id_ is not None else "") + (f"event: {event}\n" if event is not None else "")
    text = data if isinstance(data, str) else json.dumps(data, default=str, separators=(",", ":"))
    return f"{head}data: {text}\n\n".encode()


class EventStream(Response):
    """``source`` is read to its end; ``encode`` makes bytes of each item. Used once."""

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncIterator[Any],
        encode: Callable[[Any], bytes],
        closing: anyio.Event,
        *,
        waits_for_first: bool,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        super().__init__(status_code=200, headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._source = cast("AsyncGenerator[Any, None]", source)
        self._encode = encode
        self._closing = closing
        self._heartbeat_s = heartbeat_s
        self._waits_for_first = waits_for_first
        self._sending = anyio.Lock()
        self._sent_at = 0.0
        self._is_open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        refused: list[Exception] = []
        begun = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def forward() -> None:
                try:
                    async with aclosing(self._source):
                        async for item in self._source:
                            begun.set()
                            await self._send(send, self._encode(item))
                except Exception as error:  # noqa: BLE001 - told as a problem, or ends the stream below
                    refused.append(error)
                tasks.cancel_scope.cancel()

            async def leave_with_caller() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            async def leave_with_listener() -> None:
                await self._closing.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(forward)
            tasks.start_soon(leave_with_caller)
            tasks.start_soon(leave_with_listener)
            if not self._waits_for_first:
                with anyio.move_on_after(_QUIET_START_S):  # a refusal comes at once; quiet means nothing to say yet
                    await begun.wait()
                await self._send(send, b"")
            await self._beat(send)
        if refused:
            raise refused[0]
        if self._is_open:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        async with self._sending:
            if not self._is_open:
                self._is_open = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            self._sent_at = anyio.current_time()

    async def _beat(self, send: Send) -> None:
        """A comment whenever nothing was sent for a while."""
        while True:
            await anyio.sleep(self._heartbeat_s)
            if anyio.current_time() - self._sent_at >= self._heartbeat_s * 0.9:
                await self._send(send, b":\n\n")
