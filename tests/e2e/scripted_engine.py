"""The fake engine, whose streamed answers are raw bytes that the prompt chooses (BR-501, BR-504).

``cut=N``: one event with Chinese, an emoji and an accent, in two writes 20 ms apart, cut at byte N. ``odd``: one event
with a byte that is no UTF-8. ``half``: an answer that ends properly in the middle of an event.
"""

from __future__ import annotations

import time
from typing import Any

from stoker.testing.fake_engine import process
from stoker.testing.fake_engine.answers import Job
from stoker.testing.fake_engine.http import Connection, Request
from stoker.testing.fake_engine.server import Server

TEXT = "北京🚀é"
PAUSE_S = 0.02
KEY = {"chat": b'"delta":{"content":"', "completions": b'"text":"'}
CLOSE = {"chat": b'"}', "completions": b'"'}
END = b'data: {"choices":[{"index":0,"delta":{},"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def event(kind: str, text: bytes) -> bytes:
    return b'data: {"choices":[{"index":0,' + KEY[kind] + text + CLOSE[kind] + b',"finish_reason":null}]}\n\n'


def answer(kind: str, prompt: str) -> bytes:
    """Everything that the engine sends for a prompt, however it is cut."""
    if prompt == "odd":
        return event(kind, b"\xff") + END
    if prompt == "half":
        whole = event(kind, b"one") + event(kind, b"two")
        return whole[:-20]
    return event(kind, TEXT.encode()) + END


class ScriptedServer(Server):
    async def _stream(self, connection: Connection, request: Request, job: Job, first: float) -> None:
        prompt = " ".join(job.prompt).strip()
        if not prompt.startswith(("cut=", "odd", "half")):
            await super()._stream(connection, request, job, first)
            return
        connection.chunked = True
        await connection.send(self._head(request, 200, "text/event-stream", None))
        data = answer(job.kind, prompt)
        at = int(prompt.removeprefix("cut=")) if prompt.startswith("cut=") else len(data)
        for piece in filter(None, (data[:at], data[at:])):
            await connection.piece(piece)
            await connection.idle(time.monotonic() + PAUSE_S)
        await connection.send(b"0\r\n\r\n")


if __name__ == "__main__":
    replaced: Any = process
    replaced.Server = ScriptedServer
    process.main()
