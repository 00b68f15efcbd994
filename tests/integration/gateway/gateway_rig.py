"""A scripted stand-in for the runtime, a stub engine on raw sockets, and a client that shows exact bytes."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.errors import StokerError
from stoker.gateway.asgi import Gateway
from stoker.gateway.server import GatewayServer, bind_tcp, bind_unix
from stoker.gateway.settings import GatewaySettings
from stoker.gateway.upstream import UpstreamPools
from stoker.ids import DeploymentName, Generation, TicketId
from stoker.ports.engines import (
    Abort,
    Accepted,
    BreakCause,
    Capabilities,
    ConnectionFacts,
    Edits,
    Peek,
    Problem,
    Route,
    RoutePolicy,
)
from stoker.ports.units import Endpoint
from stoker.runtime.tickets import Ask, Door, End, Ticket, TicketState
from stoker.runtime.views import DeploymentView

NAMES = ("m", "aaa/llava:13b", "Org/Repo-GGUF:Q4_K_M", "a b", "a%2Fb", "100%")
ASKS = ("tools", "forced_tools", "json_object", "json_schema", "logprobs", "base64_embeddings", "token_prompts")
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
BOUND_S = 10.0
POLICY = RoutePolicy(
    frozenset(Route("POST", path) for path in PATHS), dict.fromkeys(ASKS, "yes"), frozenset({"id_slot"}), 4
)


@dataclass
class StubWire:
    policy: RoutePolicy = POLICY
    connection: ConnectionFacts = field(default_factory=lambda: ConnectionFacts(idle_s=30.0))
    abort: Abort = field(default_factory=Abort)
    edits: Edits | Problem | None = None
    problem: Problem | None = None

    def edit(self, route: Route, peek: Peek) -> Edits | Problem | None:
        return self.edits

    def map_error(self, route: Route, status: int, body: bytes) -> Problem | None:
        return self.problem

    def is_loading(self, status: int, body: bytes) -> bool:
        return status == 503 and b"Loading model" in body

    def describe_break(self, lines: Any) -> BreakCause | None:
        return None


@dataclass
class ScriptedUses:
    """`Uses` as far as requests go. ``hold`` keeps tickets waiting until `grant` or `refuse`."""

    door: Door
    hold: bool = False
    refusal: StokerError | None = None
    ready: bool = True
    asked: list[Ticket] = field(default_factory=list)
    left: list[tuple[Ticket, End]] = field(default_factory=list)
    requeued: list[Ticket] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=lambda: {"nick": "m"})
    wire: Any = None
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def find(self, name: str) -> DeploymentName | None:
        known = self.aliases.get(name, name)
        return DeploymentName(known) if known in NAMES else None

    async def look_up(self, name: str) -> DeploymentName | None:
        self.looked_up.append(name)
        return self.find(name)

    def near_names(self, name: str) -> tuple[str, ...]:
        return ("m",)

    def ask(self, ask: Ask, wake: Callable[[Ticket], None]) -> Ticket:
        if self.refusal is not None:
            raise self.refusal
        number = next(self._numbers)
        ticket = Ticket(TicketId(f"tkt_{number}"), ask, ask.deployment, asyncio.get_running_loop().time(), wake)
        self.asked.append(ticket)
        if not self.hold:
            self.grant(ticket)
        return ticket

    def grant(self, ticket: Ticket) -> None:
        ticket.state = TicketState.GRANTED
        ticket.door = replace(self.door, deployment=ticket.deployment, served_name=str(ticket.deployment))
        ticket.granted_at = asyncio.get_running_loop().time()
        ticket.wake(ticket)

    def requeue(self, ticket: Ticket) -> None:
        self.requeued.append(ticket)
        ticket.state, ticket.door = TicketState.WAITING, None
        if not self.hold:
            self.grant(ticket)

    def refuse(self, ticket: Ticket, error: StokerError) -> None:
        ticket.state, ticket.error = TicketState.REFUSED, error
        ticket.wake(ticket)

    def leave(self, ticket: Ticket, end: End) -> None:
        self.left.append((ticket, end))
        ticket.state = TicketState.RELEASED

    @property
    def ends(self) -> list[End]:
        return [end for _, end in self.left]

    def is_ready(self) -> bool:
        return self.ready

    def metrics(self) -> str:
        return "stoker_up 1\n"

    def sessions(self) -> tuple[Any, ...]:
        return ()

    def deployments(self) -> tuple[DeploymentView, ...]:
        return tuple(_view(name, self.aliases) for name in NAMES)


def _view(name: str, aliases: dict[str, str]) -> DeploymentView:
    names = (name, *(alias for alias, own in aliases.items() if own == name))
    return DeploymentView(
        name=name, names=names, spec={}, origin="file", revision=1, state="ready", sessions=(), places=1, in_flight=0,
        waiting=0, estimate={}, hold=None, last_error=None, model=name, engine="stub", size_bytes=None,
        context_tokens=4096, last_used=None, created=1700000000,
    )  # fmt: skip


@dataclass
class Seen:
    """One request as the engine got it. ``closed`` is set when the engine sees the end of its connection."""

    head: bytes
    body: bytes
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_at: float = 0.0

    def header(self, name: str) -> str | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.encode():
                return value.strip().decode()
        return None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


def plain(body: bytes, status: str = "200 OK", extra: bytes = b"") -> Script:
    """An answer with a length."""

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n".encode()
        writer.write(head + extra + b"\r\n" + body)
        await writer.drain()

    return script


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def streamed(*pieces: bytes, end: bytes = b"0\r\n\r\n", gap_s: float = 0.0) -> Script:
    """An event stream, each piece a chunk of its own; ``end`` is what comes last, nothing for a plain close."""

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for piece in pieces:
            writer.write(chunk(piece))
            await writer.drain()
            if gap_s:
                await asyncio.sleep(gap_s)
        writer.write(end)
        if not end:
            writer.close()

    return script


def event(text: str, finish: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    told = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class StubEngine:
    """Reads whole requests, keeps them, and answers each with the script of the moment."""

    def __init__(self) -> None:
        self.script: Script = plain(b'{"ok":true}')
        self.seen: list[Seen] = []
        self.connections = 0
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.writers.add(writer)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                seen = Seen(head, b"", number)
                seen.body = await reader.readexactly(int(seen.header("content-length") or 0))
                self.seen.append(seen)
                watch = asyncio.create_task(_watch(reader, seen))
                try:
                    await self.script(seen, writer)
                except (ConnectionError, RuntimeError):
                    return
                finally:
                    if not writer.is_closing() and not seen.closed.is_set():
                        watch.cancel()
                    await asyncio.wait([watch])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()


async def _watch(reader: asyncio.StreamReader, seen: Seen) -> None:
    try:
        while await reader.read(1):
            pass
    except ConnectionError:
        pass
    seen.closed_at = asyncio.get_running_loop().time()
    seen.closed.set()


@dataclass
class Reply:
    status: int
    head: bytes
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Client:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> Reply:
        """The next final head, interim answers skipped."""
        while True:
            raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), BOUND_S)
            lines = raw.decode("latin-1").split("\r\n")
            status = int(lines[0].split(" ")[1])
            if status >= 200:
                pairs = (line.partition(":") for line in lines[1:] if line)
                return Reply(status, raw, {name.lower(): value.strip() for name, _, value in pairs}, b"")

    async def reply(self, *, method: str = "POST") -> Reply:
        """One whole answer, by its own framing."""
        got = await self.head()
        if method == "HEAD" or got.status in {204, 304}:
            return got
        if got.headers.get("transfer-encoding") == "chunked":
            got.body = b"".join([piece async for piece in self.chunks()])
        elif "content-length" in got.headers:
            got.body = await asyncio.wait_for(self.reader.readexactly(int(got.headers["content-length"])), BOUND_S)
        else:
            got.body = await self.rest()
        return got

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await asyncio.wait_for(self.reader.readuntil(b"\r\n"), BOUND_S), 16)
            data = await asyncio.wait_for(self.reader.readexactly(size + 2), BOUND_S)
            if size == 0:
                return
            yield data[:-2]

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), BOUND_S)

    def abort(self) -> None:
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()


def post(body: bytes | dict[str, Any], path: str = "/v1/chat/completions", extra: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{extra}\r\n".encode() + data


def chat(*, stream: bool = False, **members: Any) -> bytes:
    return post({"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **members})


@dataclass
class Bench:
    """Everything one test needs."""

    gateway: Gateway
    uses: ScriptedUses
    engine: StubEngine
    wire: StubWire
    pools: UpstreamPools
    port: int
    socket: str
    door: Door
    listener: GatewayServer
    clients: list[Client] = field(default_factory=list)

    async def client(self) -> Client:
        made = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(made)
        return made

    async def unix_client(self) -> Client:
        made = Client(*await asyncio.open_unix_connection(self.socket))
        self.clients.append(made)
        return made

    async def ask(self, data: bytes, *, method: str = "POST") -> Reply:
        """One request on a connection of its own."""
        client = await self.client()
        client.send(data)
        try:
            return await client.reply(method=method)
        finally:
            client.close()

    async def get(self, path: str, extra: str = "", method: str = "GET") -> Reply:
        return await self.ask(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{extra}\r\n".encode(), method=method)

    def settings(self, **changes: Any) -> None:
        self.gateway.settings = replace(self.gateway.settings, **changes)

    def reopen(self, **changes: Any) -> None:
        """The next life: a new generation behind a new door."""
        self.door = replace(self.door, generation=Generation(self.door.generation + 1), **changes)
        self.uses.door = self.door
        self.pools.open(self.door)


async def until(condition: Callable[[], Any], bound_s: float = 5.0) -> None:
    """Returns when ``condition`` holds; fails after the bound."""
    loop = asyncio.get_running_loop()
    end = loop.time() + bound_s
    while not condition():
        assert loop.time() < end, "the condition never held"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def bench(**settings: Any) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        engine, wire = StubEngine(), StubWire()
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
        door = Door(
            Generation(1), DeploymentName("m"), 0, Endpoint(port=server.sockets[0].getsockname()[1]), "engine-token",
            "m", Accepted(2, 4096, Capabilities()), wire, 30.0, 30.0,
        )  # fmt: skip
        pools = UpstreamPools()
        pools.open(door)
        uses = ScriptedUses(door)
        gateway = Gateway(uses, pools, GatewaySettings(spool_dir=folder, **settings))  # type: ignore[arg-type]
        listener = GatewayServer(gateway)
        path = f"{folder}/gateway.sock"
        sockets = [bind_tcp("127.0.0.1", 0), bind_unix(path)]
        port = sockets[0].getsockname()[1]
        serving = asyncio.create_task(listener.serve(sockets))
        await listener.started()
        made = Bench(gateway, uses, engine, wire, pools, port, path, door, listener)
        try:
            yield made
        finally:
            for client in made.clients:
                client.abort()
            for writer in tuple(engine.writers):
                writer.transport.abort()
            listener.stop()
            await asyncio.wait_for(serving, 10)
            await pools.close(made.door.generation, "session-stopped")
            server.close()
