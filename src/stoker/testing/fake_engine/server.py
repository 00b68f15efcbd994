"""What the fake engine answers, and every way to spoil an answer (E-107).

Decides which bytes a client gets and when. Invariants: at most ``slots`` requests work at a time, the others wait in
order; a client that leaves frees its slot at once unless the engine runs on; the raw bytes of every request are
recorded. It knows nothing of loading, signals or memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from stoker.testing.fake_engine.answers import (
    CREATED,
    WORD,
    Job,
    chunk,
    dump,
    embeddings,
    read_object,
    read_prompt,
    shared_words,
    usage,
)
from stoker.testing.fake_engine.flavours import METRICS
from stoker.testing.fake_engine.http import Connection, Request
from stoker.testing.fake_engine.life import Life, Slot
from stoker.testing.fake_engine.loop import FOREVER, Bell, Wait

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 500: "Internal Server Error"}


class Broken(Exception):  # noqa: N818  # nothing went wrong: this break was asked for
    """The stream ends here, as ``--break`` says."""


class Server:
    def __init__(self, life: Life) -> None:
        self.life = life
        self.free = Bell()
        self.waiting: list[object] = []
        self.open = 0
        self.drained = Bell()
        self.numbers = 0
        self.answers: dict[str, Callable[[Connection, Request], Awaitable[None]]] = {
            "health": self._health,
            "models": self._models,
            "props": self._props,
            "slots": self._slots,
            "metrics": self._metrics,
            "chat": self._work,
            "completions": self._work,
            "embeddings": self._work,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "slot-action": self._slot_action,
        }

    async def accept(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            await Wait(sock=listener)
            with contextlib.suppress(OSError):
                sock, _ = listener.accept()
                sock.setblocking(False)
                self.life.loop.spawn(self._serve(Connection(self.life, sock)))

    async def _serve(self, connection: Connection) -> None:
        life = self.life
        while request := await connection.read_request(life.options.keepalive or life.flavour.idle_s):
            self.numbers += 1
            life.note("request", number=self.numbers, raw=request.raw.decode("latin-1"))
            self.open += 1
            try:
                await self._answer(connection, request)
            except Broken:
                break
            finally:
                self.open -= 1
                self.drained.ring_all()
            asked_to_close = request.headers.get("connection", "").lower() == "close"
            if asked_to_close or request.version == "HTTP/1.0" or life.phase == "closing" or connection.gone:
                break
        connection.sock.close()

    def kind_of(self, request: Request) -> str:
        routes = self.life.flavour.routes
        wild = request.path.rpartition("/")[0] + "/*"
        return routes.get((request.method, request.path)) or routes.get((request.method, wild)) or "none"

    async def _answer(self, connection: Connection, request: Request) -> None:
        life, kind = self.life, self.kind_of(request)
        is_open = kind in life.flavour.open_routes or not life.token
        if not is_open and request.headers.get("authorization") != f"Bearer {life.token}":
            await self._error(connection, request, "key")
        elif kind == "none":
            await self._error(connection, request, "route")
        elif life.phase == "loading" and (status := life.options.load.answers.get(kind, 503)) != 200:
            await self._reply(connection, request, status, life.flavour.loading.encode())
        else:
            await self.answers[kind](connection, request)

    # small answers

    async def _health(self, connection: Connection, request: Request) -> None:
        if await connection.idle(self.life.stall_until("health")) != "gone":
            await self._json(connection, request, {"status": "ok"})

    async def _models(self, connection: Connection, request: Request) -> None:
        life = self.life
        entry = {"id": life.name, "object": "model", "created": CREATED, "owned_by": life.flavour.name}
        await self._json(
            connection,
            request,
            {
                "object": "list",
                "data": [{**entry, "meta": {"n_ctx": life.context, "n_ctx_train": life.context}}],
            },
        )

    async def _props(self, connection: Connection, request: Request) -> None:
        life = self.life
        await self._json(
            connection,
            request,
            {
                "default_generation_settings": {"n_ctx": life.context},
                "total_slots": len(life.slots),
                "model_alias": life.name,
                "model_path": life.model,
                "modalities": {"vision": False, "video": False, "audio": False},
                "chat_template_caps": {"supports_tools": False, "supports_tool_calls": False},
            },
        )

    async def _slots(self, connection: Connection, request: Request) -> None:
        rows = [
            {"id": slot.number, "n_ctx": self.life.context, "speculative": False, "is_processing": slot.busy}
            for slot in self.life.slots
        ]
        await self._json(connection, request, rows)

    async def _metrics(self, connection: Connection, request: Request) -> None:
        life = self.life
        if "metrics" in life.flavour.arguments.values() and "metrics" not in life.settings:
            await self._error(connection, request, "metrics")
            return
        values = (life.prompt_tokens, life.tokens_made, sum(slot.busy for slot in life.slots), len(self.waiting))
        text = "".join(
            f"# HELP llamacpp:{name} {words}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
            for (name, kind, words), value in zip(METRICS, values, strict=True)
        )
        await self._reply(connection, request, 200, text.encode(), "text/plain; version=0.0.4")

    async def _tokenize(self, connection: Connection, request: Request) -> None:
        words = WORD.findall(str(read_object(request.body).get("content", "")))
        await self._json(connection, request, {"tokens": [zlib.crc32(word.encode()) % 50_000 for word in words]})

    async def _detokenize(self, connection: Connection, request: Request) -> None:
        tokens = read_object(request.body).get("tokens", [])
        await self._json(connection, request, {"content": " ".join(f"t{token}" for token in tokens)})

    async def _slot_action(self, connection: Connection, request: Request) -> None:
        """Save, restore, erase. A slot number that does not exist is accepted and answered with success (E-79)."""
        life, name = self.life, str(read_object(request.body).get("filename", ""))
        number = int(request.path.rpartition("/")[2])
        slot = life.slots[number] if number < len(life.slots) else Slot(number)
        action = request.query.removeprefix("action=")
        folder = life.settings.get("slot_save_path", "")
        if action == "erase":
            erased, slot.prompt = len(slot.prompt), ()
            await self._json(connection, request, {"id_slot": number, "n_erased": erased})
        elif not folder:
            await self._error(connection, request, "save")
        elif action == "save":
            size = _write(os.path.join(folder, name), json.dumps(slot.prompt))
            answer = {"id_slot": number, "filename": name, "n_saved": len(slot.prompt), "n_written": size}
            await self._json(connection, request, answer)
        else:
            await self._restore(connection, request, slot, os.path.join(folder, name))

    async def _restore(self, connection: Connection, request: Request, slot: Slot, path: str) -> None:
        slot.prompt = ()
        words = _read_words(path)
        if not words or self.life.options.restore == "fail":
            await self._error(connection, request, "restore")
            return
        if self.life.options.restore == "ok":
            slot.prompt = words
        await self._json(connection, request, {"id_slot": slot.number, "n_restored": len(words)})

    # work

    async def _work(self, connection: Connection, request: Request) -> None:
        life, kind, number = self.life, self.kind_of(request), self.numbers
        if life.options.crash_on and life.options.crash_on.encode() in request.body:
            life.crash("word")
        if life.options.oom == "serve":
            life.fail("serve")
        try:
            body = json.loads(request.body)
            prompt = read_prompt(kind, body)
        except (ValueError, TypeError, AttributeError):
            await self._error(connection, request, "json")
            return
        if (
            kind == "embeddings"
            and "embeddings" in life.flavour.arguments.values()
            and "embeddings" not in life.settings
        ):
            await self._error(connection, request, "embeddings")
            return
        if len(prompt) >= life.context:
            await self._error(connection, request, "overflow", prompt_tokens=len(prompt), context=life.context)
            return
        if await connection.idle(life.stall_until("answer-head")) == "gone":
            self._abort(number, 0)
            return
        slot = await self._take_slot(connection, body.get("id_slot"), prompt)
        if slot is None:
            self._abort(number, 0)
            return
        began, job = time.monotonic(), self._job(kind, number, slot, prompt, body)
        life.say(*life.flavour.request_begun, slot=slot.number, task=number)
        try:
            await self._run(connection, request, job, stream=bool(body.get("stream")) and kind != "embeddings")
        finally:
            slot.busy = False
            self.free.ring()
            took_ms = round((time.monotonic() - began) * 1000, 2)
            total = len(prompt) + len(job.words)
            life.say(*life.flavour.request_done, slot=slot.number, task=number, took_ms=took_ms, tokens=total)
        life.count_request()

    async def _take_slot(self, connection: Connection, wanted: object, prompt: tuple[str, ...]) -> Slot | None:
        """A free slot: the wanted one, else the one with most of this prompt. None: the client left while waiting."""
        place = object()
        self.waiting.append(place)
        try:
            while True:
                free = [slot for slot in self.life.slots if not slot.busy and wanted in (None, -1, slot.number)]
                if free and self.waiting[0] is place:
                    slot = max(free, key=lambda slot: (shared_words(slot.prompt, prompt), -slot.number))
                    slot.busy = True
                    return slot
                if await connection.idle(FOREVER, self.free) == "gone":
                    return None
        finally:
            self.waiting.remove(place)
            self.free.ring()

    def _job(self, kind: str, number: int, slot: Slot, prompt: tuple[str, ...], body: dict[str, Any]) -> Job:
        life = self.life
        cached = min(shared_words(slot.prompt, prompt), max(0, len(prompt) - 1))
        slot.prompt = prompt
        life.prompt_tokens += len(prompt) - cached
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        room = life.context - len(prompt)
        words = WORD.findall(life.options.text)
        natural = len(words)
        limit = min(int(asked) if asked else (room if body.get("ignore_eos") else natural), room)
        if body.get("ignore_eos"):
            words = [*words[:-1], words[-1] + " "] * (limit // natural + 1)
        finish = "stop" if limit >= natural and not body.get("ignore_eos") else "length"
        told = len(prompt) if life.options.cached_tokens == "lie" else cached
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return Job(kind, number, slot, prompt, [] if kind == "embeddings" else words[:limit], finish, told, wants_usage)

    async def _run(self, connection: Connection, request: Request, job: Job, *, stream: bool) -> None:
        life = self.life
        await connection.idle(life.stall_until("prefill"))
        prefill_s = (len(job.prompt) - job.cached) / life.options.prefill_tps if life.options.prefill_tps else 0.0
        first = time.monotonic() + life.options.ttft + prefill_s
        await connection.idle(first)
        if stream and not connection.gone:
            await self._stream(connection, request, job, first)
        elif await self._generate(connection, job, first) and not connection.gone:
            await self._whole(connection, request, job)

    async def _generate(
        self, connection: Connection, job: Job, first: float, emit: Callable[[int, str], Awaitable[None]] | None = None
    ) -> bool:
        """Make the words at their times. False: the client left and the work was given up."""
        life, seen = self.life, False
        half = len(job.words) // 2
        for index, word in enumerate(job.words):
            await connection.idle(first + (index / life.options.tps if life.options.tps else 0.0))
            if index == half:
                await connection.idle(life.stall_until("decode"))
            if connection.gone and not seen:
                seen = True
                self._abort(job.number, index)
                if not life.options.runs_on:
                    return False
            life.count_token()
            if emit is not None and not connection.gone:
                await emit(index, word)
        if seen:
            life.note("ran-on", number=job.number, tokens=len(job.words))
        return True

    def _abort(self, number: int, tokens: int) -> None:
        self.life.note("abort", number=number, tokens=tokens)

    async def _stream(self, connection: Connection, request: Request, job: Job, first: float) -> None:
        style, half = self.life.options.break_, len(job.words) // 2
        connection.chunked = request.version == "HTTP/1.1"
        await connection.send(self._head(request, 200, "text/event-stream", None))
        if job.kind == "chat":
            await self._event(connection, chunk(self.life, job, {"role": "assistant", "content": None}))

        async def emit(index: int, word: str) -> None:
            event = chunk(self.life, job, {"content": word})
            if index == half and style == "error-event":
                await self._event(connection, json.loads(self.life.flavour.errors["broken"][1]))
                await self._end(connection)
                raise Broken
            if index == half and style in {"cut", "half-event"}:
                if style == "half-event":
                    line = b"data: " + dump(event)
                    await connection.piece(line[: len(line) // 2])
                raise Broken
            await self._event(connection, event)

        if not await self._generate(connection, job, first, emit):
            return
        await self._event(connection, chunk(self.life, job, {}, job.finish))
        if job.wants_usage:
            await self._event(connection, {**chunk(self.life, job, {}), "choices": [], "usage": usage(job)})
        await self._end(connection, marked=style != "no-done")

    async def _event(self, connection: Connection, event: object) -> None:
        data = b"data: " + dump(event) + b"\n\n"
        await (connection.spoon(data) if self.life.options.break_ == "slow-loris" else connection.piece(data))

    async def _end(self, connection: Connection, *, marked: bool = True) -> None:
        if marked:
            await connection.piece(b"data: [DONE]\n\n")
        await connection.send(b"0\r\n\r\n" if connection.chunked else b"")

    async def _whole(self, connection: Connection, request: Request, job: Job) -> None:
        style = self.life.options.break_
        if style == "error-event":
            await self._error(connection, request, "broken")
            return
        if job.kind == "embeddings":
            data = dump(embeddings(self.life, job))
        else:
            choice = chunk(self.life, job, {"content": "".join(job.words)}, job.finish, whole=True)
            data = dump({**choice, "usage": usage(job)})
        if style in {"cut", "half-event"}:
            await connection.send(self._head(request, 200, "application/json; charset=utf-8", len(data)))
            await connection.send(data[: len(data) // 2])
            raise Broken
        connection.chunked = False
        if style == "slow-loris":
            await connection.send(self._head(request, 200, "application/json; charset=utf-8", len(data)))
            await connection.spoon(data)
        else:
            await self._reply(connection, request, 200, data)

    # the shape of answers

    def _head(self, request: Request, status: int, content_type: str, length: int | None) -> bytes:
        life = self.life
        lasts = request.version == "HTTP/1.1" and request.headers.get("connection", "").lower() != "close"
        idle_s = life.options.keepalive or life.flavour.idle_s
        lines = [
            f"HTTP/1.1 {status} {REASONS.get(status, 'Other')}",
            f"Server: {life.flavour.server}",
            f"Content-Type: {content_type}",
            *([f"Content-Length: {length}"] if length is not None else []),
            *(["Transfer-Encoding: chunked"] if length is None and request.version == "HTTP/1.1" else []),
            f"Keep-Alive: timeout={idle_s:g}, max=100" if lasts else "Connection: close",
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def _reply(
        self, connection: Connection, request: Request, status: int, data: bytes, content_type: str = ""
    ) -> None:
        head = self._head(request, status, content_type or "application/json; charset=utf-8", len(data))
        await connection.send(head + data)

    async def _json(self, connection: Connection, request: Request, value: object) -> None:
        await self._reply(connection, request, 200, dump(value))

    async def _error(self, connection: Connection, request: Request, name: str, **values: int) -> None:
        status, text = self.life.flavour.errors[name]
        await self._reply(connection, request, status, (text.format_map(values) if values else text).encode())


def _write(path: str, text: str) -> int:
    with open(path, "w", encoding="utf-8") as file:
        return file.write(text)


def _read_words(path: str) -> tuple[str, ...]:
    try:
        with open(path, encoding="utf-8") as file:
            return tuple(json.load(file))
    except (OSError, ValueError):
        return ()
