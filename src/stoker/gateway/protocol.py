"""The listener's side of one connection: uvicorn's protocol with our bounds, our errors and our eyes (R-50 to R-56).

Adds to uvicorn's: bounds on head, body silence and idleness; typed JSON for what no application ever sees; whole
refusals of bodies that are not read; and the knowledge, at once and by callback, that a client left (R-83, R-84).
Knows nothing of routes, models or dialects.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stoker.errors import CapacityError, ErrorCode, StokerError, UsageError
from stoker.gateway.bodies import BodyRoom, Intake
from stoker.gateway.exchange import Exchange
from stoker.gateway.heads import Fields, Head, read_head
from stoker.gateway.knownhead import KnownHead, read_known_head
from stoker.gateway.settings import GatewaySettings

MAX_HEAD_BYTES = 64 << 10
MAX_FIELDS = 128
HIGH_WATER_BYTES, LOW_WATER_BYTES = 64 << 10, 16 << 10
LINGER_BYTES, LINGER_S = 1 << 20, 2.0
MAX_PIPELINED = 16
PROBE_AT_S = (0.0, 0.010, 0.025, 0.050)
_CLOSE_WAIT = 8
_TCP_INFO_BYTES = 8


class Application(Protocol):
    """What the listener needs of the application it serves."""

    @property
    def settings(self) -> GatewaySettings: ...
    @property
    def room(self) -> BodyRoom: ...
    def begin(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Serve ``exchange``, whose body may still be coming; a coroutine if there is something to be waited for."""
        ...

    def refusal(self, error: StokerError) -> bytes:
        """A whole HTTP/1.1 answer that closes the connection, for requests that never become an exchange."""
        ...


class GatewayProtocol(HttpToolsProtocol):
    """One client connection. States: idle, head, body, busy; one timer watches all of them."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.gateway = cast("Application", config.app)
        self.exchange: Exchange | None = None  # the one whose body is being received
        self.active: deque[Exchange] = deque()  # answered in order
        self.serving: Exchange | None = None  # the first of them, unless the answers before it are still to be taken
        self.last_head: Head | None = None
        self.pending: Exchange | None = None  # its head came in the read that is being parsed
        self.known: KnownHead | None = None
        self.known_request: tuple[str, bytes, Head] | None = None  # what the known head says
        self.fields: Fields = []
        self.length: bytes | None = None
        self.lengths = 0
        self.head_bytes = 0
        self.in_head = False
        self.has_begun = False
        self.is_deaf = False  # nothing more is read as requests
        self.is_paused = False
        self.is_held = False  # what comes next waits until the client has taken the answers before it
        self.last_refusal: StokerError | None = None
        self.linger_left: int | None = None
        self.touched_at = 0.0
        self.watch: asyncio.TimerHandle | None = None
        self.stall: asyncio.TimerHandle | None = None
        self.local_name: str | None = None
        self.peer_name = ""

    # -- the transport ---------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(HIGH_WATER_BYTES, LOW_WATER_BYTES)
        self.local_name = self.server[0] if self.server else None
        self.peer_name = self.client[0] if self.client else "unix"
        self.touched_at = self.loop.time()
        bound = self.gateway.settings.max_connections
        if len(self.connections) > bound:
            self._refuse(
                CapacityError(
                    ErrorCode.GATEWAY_BUSY,
                    f"{bound} connections are open; no more are taken.",
                    remedy="Close idle connections, or raise gateway.max_connections.",
                    details={"setting": "gateway.max_connections", "limit": bound},
                    retry_after_s=1,
                )
            )
            return
        self._arm_watch()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.connections.discard(self)
        for timer in (self.watch, self.stall):
            if timer is not None:
                timer.cancel()
        for exchange in tuple(self.active):
            exchange.intake.fail(_left_early())
            exchange.gone()
            if exchange is not self.serving:
                exchange.drop()
        self.flow.resume_writing()
        self.parser = None  # type: ignore[assignment]  # it holds this protocol; nothing is parsed any more

    def data_received(self, data: bytes) -> None:
        if self.linger_left is not None:
            self.linger_left -= len(data)
            if self.linger_left <= 0:
                self.transport.close()
            return
        if self.is_deaf:
            return
        self.touched_at = self.loop.time()
        if not self.has_begun and not self.active and self.known is not None:
            body_start = self.known.body_start(data)
            if body_start:
                self._take_known(data[body_start:])
                return
        is_first = not self.has_begun and not self.active
        self.has_begun = True
        try:
            self._parse(data)
        finally:
            pending, self.pending = self.pending, None
            if pending is not None:
                if is_first:
                    self._learn(pending, data)
                self._serve(pending)

    def _take_known(self, body: bytes) -> None:
        """A whole request with the head of the last one: what its head means is known."""
        assert self.known_request is not None
        intake = Intake(self.gateway.room, self.gateway.settings, len(body))
        exchange = Exchange(self, *self.known_request, intake, keep_alive=True)
        intake.pause, intake.resume = self._pause, self._resume
        exchange.local_address, exchange.peer = self.local_name, self.peer_name
        self.active.append(exchange)
        if body:
            intake.feed(body)
        intake.end()
        self._serve(exchange)

    def _learn(self, exchange: Exchange, data: bytes) -> None:
        """Know this request's head again if all of the read was this one request and it leaves the connection open."""
        self.known = None
        size = exchange.intake.declared_bytes
        is_whole = self.exchange is None and len(self.active) == 1 and not self.is_deaf
        if size is None or not is_whole or not exchange.keep_alive or not exchange.intake.is_ended:
            return
        if self.parser.should_upgrade() or exchange.head.expect or exchange.head.transfer or exchange.head.http10:
            return
        self.known = read_known_head(data, size)
        self.known_request = (exchange.method, exchange.target, exchange.head)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stop_listening()
        except httptools.HttpParserCallbackError as exc:
            if not isinstance(exc.__context__, _HeadRefusedError):
                raise
            self._refuse(exc.__context__.error)
            return
        except httptools.HttpParserError as exc:
            self._parse_error(exc)
            return
        if self.in_head or (self.has_begun and self.exchange is None):
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                self._refuse(_head_too_large(self.head_bytes, len(self.fields)))

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio: true keeps the sending half open
        """R-84: a client that sent its whole request may only have closed its sending half."""
        if self.linger_left is not None or not self.active:
            return False
        self.is_deaf = True
        current = self.active[0]
        if not current.intake.is_ended or (current.head.http10 and not current.is_started):
            return False
        for exchange in self.active:
            exchange.keep_alive = False
        self._probe(0)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.serving is not None:
            self.serving.set_paused(paused=True)
        self._arm_stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stall is not None:
            self.stall.cancel()
            self.stall = None
        if self.serving is not None:
            self.serving.set_paused(paused=False)
        elif self.is_held:
            self.is_held = False
            self._next()

    def shutdown(self) -> None:
        if not self.active:
            self.transport.close()
        for exchange in self.active:
            exchange.keep_alive = False

    # -- the parser ------------------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        self.url = b""
        self.fields = []
        self.length, self.lengths = None, 0
        self.in_head = self.has_begun = True
        self.head_bytes = 0
        self.exchange = None

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length":
            self.length = value
            self.lengths += 1
            return
        self.fields.append((name, value))
        if len(self.fields) > MAX_FIELDS - self.lengths:
            raise _HeadRefusedError(_head_too_large(self.head_bytes, len(self.fields) + self.lengths))

    def on_headers_complete(self) -> None:
        self.in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.fields)
        if size > MAX_HEAD_BYTES:
            raise _HeadRefusedError(_head_too_large(size, len(self.fields)))
        http10 = self.parser.get_http_version() == "1.0"
        head = self.last_head
        if head is None or head.fields != self.fields or head.http10 != http10:
            head = self.last_head = read_head(self.fields, http10=http10)
        self._refuse_framing(head)
        declared = int(self.length) if self.length is not None else None
        intake = Intake(self.gateway.room, self.gateway.settings, declared)
        exchange = Exchange(
            self, self.parser.get_method().decode("ascii"), self.url, head, intake,
            keep_alive=self.parser.should_keep_alive(),
        )  # fmt: skip
        intake.pause, intake.resume = self._pause, self._resume
        exchange.local_address, exchange.peer = self.local_name, self.peer_name
        self.exchange = exchange
        self.active.append(exchange)
        if len(self.active) == 1:
            self.pending = exchange  # served when the read is parsed: most often its body is there then
        elif len(self.active) > MAX_PIPELINED:  # not sooner: a client's leaving is seen only while it is read from
            self._pause()

    def on_body(self, body: bytes) -> None:
        if self.exchange is not None:
            self.exchange.intake.feed(body)

    def on_message_complete(self) -> None:
        exchange, self.exchange = self.exchange, None
        self.has_begun = False
        if exchange is not None:
            exchange.intake.end()
            if not exchange.keep_alive:
                self._stop_listening()

    def _refuse_framing(self, head: Head) -> None:
        """Two readings of where a body ends are one too many (R-55)."""
        if self.lengths > 1:
            raise _HeadRefusedError(_malformed("it has two lengths"))
        if self.length is not None and not (self.length.isdigit() and len(self.length) < 19):
            raise _HeadRefusedError(_malformed("its length is not a number"))
        if head.transfer and (
            self.lengths or head.http10 or [v.strip().lower() for v in head.transfer] != [b"chunked"]
        ):
            raise _HeadRefusedError(_malformed("its transfer encoding cannot be read with certainty"))

    def _parse_error(self, exc: httptools.HttpParserError) -> None:
        error = _malformed(str(exc).lower() or "it is not HTTP")
        if self.exchange is not None and not self.exchange.intake.is_ended:
            self._stop_listening()
            self.exchange.intake.fail(error)
            return
        self._refuse(error)

    # -- serving ---------------------------------------------------------------------------------------------------
    def _serve(self, exchange: Exchange) -> None:
        self.serving = exchange
        rest = self.gateway.begin(exchange)
        if rest is not None:
            self.go_on(exchange, rest)

    def go_on(self, exchange: Exchange, rest: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(self._run(exchange, rest))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _run(self, exchange: Exchange, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        finally:
            exchange.drop()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def exchange_over(self, exchange: Exchange) -> None:
        """The next request of this connection, or its end. Unread input is drained, so the answer arrives (R-57)."""
        self.server_state.total_requests += 1
        self.touched_at = self.loop.time()
        self.serving = None
        if self.active and self.active[0] is exchange:
            self.active.popleft()
        if self.transport.is_closing():
            return
        if not exchange.intake.is_ended:
            self._linger()
        elif not exchange.keep_alive:
            self.transport.close()
        else:
            self._next()

    def _next(self) -> None:
        """What comes after an answer, once the client has taken enough of it to leave room for another (R-68)."""
        if self.flow.write_paused:
            self.is_held = True
            self._pause()
        elif self.active:
            self.loop.call_soon(self._serve_first)  # not inside of the answer before: pipelines are longer than stacks
        elif self.last_refusal is not None:
            self._refuse(self.last_refusal)
        else:
            self._resume()

    def _serve_first(self) -> None:
        if self.active and self.serving is None and not self.transport.is_closing():
            self._serve(self.active[0])

    def _refuse(self, error: StokerError) -> None:
        """A request that never became an exchange: answered after those before it, then closed."""
        self.is_deaf = True
        self.last_refusal = error
        if self.active:
            return
        self.write(self.gateway.refusal(error))
        self._linger()

    def _stop_listening(self) -> None:
        self.is_deaf = True
        if self.active:
            self.active[-1].keep_alive = False

    def _linger(self) -> None:
        self.linger_left = LINGER_BYTES
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._resume()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _pause(self) -> None:
        if not self.is_paused and not self.transport.is_closing():
            self.is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self.is_paused and not self.transport.is_closing():
            self.is_paused = False
            self.touched_at = self.loop.time()
            self.transport.resume_reading()

    # -- bounds in time --------------------------------------------------------------------------------------------
    def _arm_watch(self) -> None:
        limit_s, _ = self._limit()
        due_s = self.touched_at + limit_s - self.loop.time()
        self.watch = self.loop.call_later(min(max(due_s, 0.01), 5.0), self._on_watch)

    def _limit(self) -> tuple[float, str]:
        settings = self.gateway.settings
        if self.exchange is not None:
            return settings.body_idle_s, "body"
        if self.has_begun:
            return settings.header_timeout_s, "head"
        return settings.connection_idle_s, "idle"

    def _on_watch(self) -> None:
        if self.transport.is_closing() or self.linger_left is not None:
            return
        limit_s, state = self._limit()
        busy = bool(self.active) and state == "idle"
        if not busy and not self.is_paused and self.loop.time() - self.touched_at >= limit_s:
            if state == "idle":
                self.transport.close()
                return
            error = UsageError(
                ErrorCode.BODY_TIMEOUT,
                f"The {state} of the request did not go on for {limit_s:g} s.",
                remedy="Send the request without such a pause.",
                details={"limit_s": limit_s},
            )
            if self.exchange is not None:
                self._stop_listening()
                self.exchange.intake.fail(error)
            else:
                self._refuse(error)
                return
        self._arm_watch()

    def _arm_stall(self) -> None:
        """R-68: a client that takes no byte for the limit is gone; one that is only slow is not."""
        size = self.transport.get_write_buffer_size()
        self.stall = self.loop.call_later(self.gateway.settings.client_stall_s, self._on_stall, size)

    def _on_stall(self, size_before: int) -> None:
        if self.transport.get_write_buffer_size() < size_before:
            self._arm_stall()
        else:
            self.transport.abort()

    # -- is the client still there? --------------------------------------------------------------------------------
    def _probe(self, number: int) -> None:
        if self.transport.is_closing() or not self.active:
            return
        if not self._is_open_for_writing():
            self.transport.abort()
            return
        current = self.active[0]
        if number == 0:
            if not current.is_started:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif current.probe_comment is not None:
                current.write(current.probe_comment)
                current.flush()
        if number + 1 < len(PROBE_AT_S):
            self.loop.call_later(PROBE_AT_S[number + 1] - PROBE_AT_S[number], self._probe, number + 1)

    def _is_open_for_writing(self) -> bool:
        line = self.transport.get_extra_info("socket")
        number = line.fileno()
        if number < 0:
            return False
        poll = select.poll()
        poll.register(number, select.POLLHUP | select.POLLERR)
        if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0)):
            return False
        if line.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
            return True
        state = struct.unpack("B", line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)[:1])[0]
        return bool(state in {1, _CLOSE_WAIT})


class _HeadRefusedError(Exception):
    """Leaves the parser with the answer to a head that is out of bounds."""

    def __init__(self, error: StokerError) -> None:
        super().__init__(error.message)
        self.error = error


def _malformed(why: str) -> StokerError:
    return UsageError(
        ErrorCode.MALFORMED_REQUEST, f"The request cannot be read: {why}.", remedy="Send well-formed HTTP/1.1."
    )


def _head_too_large(size: int, fields: int) -> StokerError:
    return UsageError(
        ErrorCode.HEADER_TOO_LARGE,
        f"The header block has {size} bytes and {fields} fields or more; "
        f"{MAX_HEAD_BYTES} and {MAX_FIELDS} are allowed.",
        remedy="Send fewer or shorter header fields.",
    )


def _left_early() -> StokerError:
    return UsageError(ErrorCode.MALFORMED_REQUEST, "The client left before its request was complete.")
