"""The byte path: one granted request to its engine and the answer back (R-65 to R-82).

Bytes are pushed from the engine's connection to the client's in the callback that received them: one write for each
read, no task, no queue. A slow client stops the reading of the engine. The relay decides what an answer is (a stream
to be guarded, a plain body, an error to be judged), holds the limits in time, and cuts the engine off the moment the
client is gone. It knows no dialect and no queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from stoker.errors import EngineError, ErrorCode, StokerError, error_for
from stoker.gateway.connection import EngineConnection
from stoker.gateway.dialect import Dialect
from stoker.gateway.encodings import Decoder, is_wanted
from stoker.gateway.exchange import Exchange
from stoker.gateway.guard import StreamGuard
from stoker.gateway.heads import Fields, returned_block
from stoker.gateway.peek import Buffer, Peeked
from stoker.gateway.upstream import Pool
from stoker.ports.engines import Route
from stoker.runtime.tickets import End

HELD_BYTES = 64 << 10
ERROR_BYTES = 1 << 20
REPEAT_WITHIN_S = 0.25


class StillLoadingError(Exception):
    """The engine said, in words its adapter knows, that it is not ready after all (R-45)."""


@dataclass(slots=True)
class Work:
    """One request as it goes to an engine. ``block``: header lines of ours for the answer (CORS, waiting)."""

    request_id: str
    id_line: bytes
    dialect: Dialect
    route: Route
    peeked: Peeked
    body: list[Buffer]
    block: bytes = b""


class Relay:
    """One exchange with an engine. ``end`` says how it ended, also when `run` raises."""

    __slots__ = (
        "_block", "_connection", "_decoder", "_done", "_exchange", "_fields", "_guard", "_held", "_held_bytes",
        "_last_at", "_length", "_loop", "_mode", "_pool", "_repeated", "_sent_at", "_status", "_timer", "_was_reused",
        "_work", "end",
    )  # fmt: skip

    def __init__(self, work: Work, pool: Pool, exchange: Exchange) -> None:
        self._work = work
        self._pool = pool
        self._exchange = exchange
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[bool] | _Called = _Called(self._loop, _nobody)
        self._connection: EngineConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._guard: StreamGuard | None = None
        self._decoder: Decoder | None = None
        self._mode: Callable[[bytes], None] = self._nothing_yet
        self._block = b""
        self._fields: Fields = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._status = 0
        self._length: int | None = None
        self._sent_at = 0.0
        self._last_at: float | None = None
        self._was_reused = self._repeated = False
        self.end = End.ENGINE_BROKE

    def begin(self, over: Callable[[], None]) -> bool:
        """As `run`, without a task; False, and nothing done, if no connection is free. ``over`` is called at the end.

        Then `outcome` is True where `run` returns, what it raises where it raises, and False if `run` has to go on.
        """
        connection = self._pool.take()
        if connection is None:
            return False
        self._done = _Called(self._loop, over)
        self._attach()
        self._was_reused = True
        if not self._send(connection):
            self._done.set_result(True)
        return True

    def outcome(self) -> bool | Exception:
        assert isinstance(self._done, _Called)
        assert self._done.value is not None
        if self._done.value is not False:
            self._detach()
        return self._done.value

    async def run(self) -> None:
        """Returns when the answer was delivered or the client left; raises what the client has yet to be told."""
        exchange, pool = self._exchange, self._pool
        self._attach()
        try:
            if exchange.is_gone:
                self.end = End.CLIENT_GONE
                return
            connection = None if self._repeated else pool.take()
            self._was_reused = connection is not None
            self._done = self._loop.create_future()
            if connection is None:
                connection = await pool.connect()
            while self._send(connection) and not await self._done:
                self._was_reused = False
                self._done = self._loop.create_future()
                connection = await pool.connect()
        except asyncio.CancelledError:
            self.end = End.CANCELLED
            raise
        finally:
            self._detach()

    def _attach(self) -> None:
        exchange = self._exchange
        exchange.on_gone = self._client_gone
        exchange.on_write_paused, exchange.on_resume = self._pause, self._resume
        self._pool.stops.add(self)

    def _detach(self) -> None:
        exchange = self._exchange
        self._pool.stops.discard(self)
        exchange.on_gone = exchange.on_write_paused = exchange.on_resume = None
        if self._timer is not None:
            self._timer.cancel()
        self._drop_connection()
        self._mode = _dropped  # a method of its own would keep it until the garbage is collected

    # -- the engine's side -----------------------------------------------------------------------------------------
    def answer_head(self, status: int, fields: Fields, length: int | None) -> None:
        self._status, self._fields, self._length = status, fields, length
        if not 200 <= status < 300:
            self._mode = self._collect
            return
        self._exchange.intake.close()
        self._work.body = []
        kind = encoding = b""
        for name, value in fields:
            if name == b"content-type":
                kind = value
            elif name == b"content-encoding":
                encoding = value.strip().lower()
        is_stream = kind[:17].lower() == b"text/event-stream"
        compressed = bool(encoding) and encoding != b"identity"
        if compressed and (is_stream or not is_wanted(encoding, self._exchange.head.accept_encoding)):
            try:
                self._decoder = Decoder(encoding)
            except EngineError as error:
                self._fail(error)
                return
            self._length = None
        work = self._work
        self._block = b"%bstoker-speaker: engine\r\n%b%b" % (
            self._returned(fields), work.id_line, work.block,
        )  # fmt: skip
        if is_stream:
            self._guard = StreamGuard(work.dialect, work.dialect.reading(work.peeked))
            self._mode = self._guarded
            if not self._exchange.is_started:
                self._exchange.start(status, self._block, None)
        elif self._exchange.is_started:
            self._fail(_bad_answer("it is not the stream that was asked for"))
        else:
            self._mode = self._hold

    def _returned(self, fields: Fields) -> bytes:
        """What the client gets of the engine's fields; made once for fields that a connection repeats."""
        connection = self._connection
        if connection is None or self._decoder is not None:
            return returned_block(fields, keep_encoding=False)
        if connection.returned is None:
            connection.returned = returned_block(fields, keep_encoding=True)
        return connection.returned

    def answer_data(self, piece: bytes) -> None:
        if self._last_at is None:
            if self._timer is not None:
                self._timer.cancel()
            self._arm(self._pool.door.stream_idle_timeout_s)
        self._last_at = self._pool.door.activity.last_byte_at = self._loop.time()
        if self._decoder is not None:
            try:
                piece = self._decoder.feed(piece)
            except EngineError as error:
                self._fail(error)
                return
        self._mode(piece)

    def read_done(self) -> None:
        self._exchange.flush()

    def answer_ended(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection)
        try:
            if self._decoder is not None:
                self._decoder.check_end()
            if self._mode == self._collect:
                self._judge_error(b"".join(self._held))
                return
        except (StokerError, StillLoadingError) as error:
            self._fail(error)
            return
        if self._guard is not None:
            self._exchange.write(self._guard.take_last_line())
            self._close_stream(_incomplete())
            return
        if self._mode == self._hold:
            self._exchange.start(self._status, self._block, self._held_bytes)
            self._release_held()
        self._exchange.finish()
        self._over(End.COMPLETE)

    def answer_broke(self, cause: str, *, had_bytes: bool) -> None:
        self._connection = None
        if cause == "lost" and not had_bytes and self._may_repeat():
            self._repeated = True
            if not self._done.done():
                self._done.set_result(False)
            return
        if cause == "lost":
            self._fail(
                EngineError(
                    ErrorCode.ENGINE_CONNECTION_LOST,
                    "The engine's connection ended before its answer was complete.",
                    remedy="Send the request again; the session is being watched.",
                )
            )
        else:
            self._fail(_bad_answer("it is not well-formed HTTP"))

    def stopped(self, error: StokerError) -> None:
        """The session is being ended (R-85, T3)."""
        self.end = End.CANCELLED if error.code is ErrorCode.SESSION_STOPPED else End.ENGINE_BROKE
        self._fail(error, self.end)

    # -- what becomes of bytes -------------------------------------------------------------------------------------
    def _nothing_yet(self, piece: bytes) -> None:
        """Before a head there are no body bytes, and after a failure none are wanted."""

    def _guarded(self, piece: bytes) -> None:
        assert self._guard is not None
        passed, connection = self._guard.feed(piece), self._connection
        if passed is piece and connection is not None and connection.framed and self._decoder is None:
            self._exchange.write_chunk(piece, connection.framed)
        else:
            self._exchange.write(passed)

    def _hold(self, piece: bytes) -> None:
        """A plain answer up to 64 KiB is sent when it is whole, so that a dying engine becomes a clean 502."""
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > HELD_BYTES:
            self._mode = self._exchange.write
            self._exchange.start(self._status, self._block, self._length)
            self._release_held()

    def _collect(self, piece: bytes) -> None:
        self._held_bytes += len(piece)
        if self._held_bytes <= ERROR_BYTES:
            self._held.append(piece)
        else:
            self._fail(_failed(self._status))

    def _release_held(self) -> None:
        for piece in self._held:
            self._exchange.write(piece)
        self._held.clear()

    def _judge_error(self, body: bytes) -> None:
        """R-75: what an engine's refusal means for the client."""
        wire, work, status = self._pool.door.wire, self._work, self._status
        if wire.is_loading(status, body):
            raise StillLoadingError
        problem = wire.map_error(work.route, status, body)
        if problem is not None:
            if status < 500 or error_for(problem.code, problem.message).row.http_status < 500:
                self.end = End.COMPLETE
            raise error_for(
                problem.code, problem.message, remedy=problem.remedy, details=problem.details, param=problem.param
            )
        passes = 400 <= status < 500 and status not in {401, 403} and work.dialect.is_error(body)
        if not passes or self._exchange.is_started:
            raise _failed(status)
        block = returned_block(self._fields, keep_encoding=True)
        block += b"stoker-speaker: engine\r\n" + work.id_line + work.block
        self._exchange.start(status, block, len(body))
        self._exchange.write(body)
        self._exchange.finish()
        self._over(End.COMPLETE)

    # -- ends ------------------------------------------------------------------------------------------------------
    def _fail(self, error: Exception, end: End | None = None) -> None:
        """The answer cannot be completed: told as a status, as an event, or by a cut, whatever is still possible."""
        self._mode = self._nothing_yet
        self._drop_connection()
        if self._done.done():
            return
        if end is not None:
            self.end = end
        if self._guard is not None and isinstance(error, StokerError):
            self._close_stream(error)
        elif self._exchange.is_started and self._held_bytes and self._status < 300:
            self._exchange.abort()
            self._done.set_result(True)
        else:
            self._done.set_exception(error)

    def _close_stream(self, error: StokerError) -> None:
        """R-77: a whole stream ends as it is, any other with the error and the end marker."""
        guard, work = self._guard, self._work
        assert guard is not None
        self._exchange.write(guard.closing(work.dialect.error_event(error, work.request_id)))
        self._exchange.finish()
        self._over(End.COMPLETE if guard.reading.is_whole else self.end)

    def _over(self, end: End) -> None:
        self.end = end
        if not self._done.done():
            self._done.set_result(True)

    def _client_gone(self) -> None:
        self._drop_connection()
        self._over(End.CLIENT_GONE)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # -- sending and limits ----------------------------------------------------------------------------------------
    def _send(self, connection: EngineConnection) -> bool:
        """Hand the request over; False if there is nobody left to answer."""
        if self._exchange.is_gone:
            connection.abort()
            self.end = End.CLIENT_GONE
            return False
        self._connection = connection
        work, pool = self._work, self._pool
        size = sum(map(len, work.body))
        head = b"POST %b HTTP/1.1\r\n%b%b%bcontent-length: %d\r\n\r\n" % (
            work.route.path.encode(), pool.host_line, self._exchange.head.forwarded, work.id_line, size,
        )  # fmt: skip
        self._sent_at = self._loop.time()
        if self._timer is None:
            self._arm(pool.door.first_token_timeout_s)
        connection.send(head, work.body, self)
        return True

    def _may_repeat(self) -> bool:
        """R-67: only a request that certainly met a closed connection is sent again, once."""
        return (
            self._was_reused
            and not self._repeated
            and self._pool.closed_by is None
            and self._loop.time() - self._sent_at <= REPEAT_WITHIN_S
        )

    def _arm(self, delay_s: float) -> None:
        if delay_s > 0:
            self._timer = self._loop.call_later(delay_s, self._on_limit)

    def _on_limit(self) -> None:
        door = self._pool.door
        if self._last_at is None:
            error = _limit(ErrorCode.FIRST_TOKEN_TIMEOUT, "first_token_timeout_s", door.first_token_timeout_s)
            self._fail(error, End.TIMEOUT)
            return
        limit_s = door.stream_idle_timeout_s
        if limit_s <= 0:
            return
        silent_s = self._loop.time() - self._last_at
        if self._exchange.write_paused or silent_s < limit_s:
            self._arm(max(limit_s - silent_s, 0.01) if not self._exchange.write_paused else limit_s)
            return
        self._fail(_limit(ErrorCode.STREAM_IDLE_TIMEOUT, "stream_idle_timeout_s", limit_s), End.TIMEOUT)

    def _pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def _resume(self) -> None:
        if self._last_at is not None:
            self._last_at = self._loop.time()
        if self._connection is not None:
            self._connection.resume()


def _dropped(piece: bytes) -> None:
    """Bytes that come when all is over."""


def _nobody() -> None:
    """Nobody waits for this."""


class _Called:
    """As much of a future as the relay needs, with one callback and no task behind it."""

    __slots__ = ("_loop", "_over", "value")

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
        self._over = over
        self.value: bool | Exception | None = None

    def done(self) -> bool:
        return self.value is not None

    def set_result(self, value: bool) -> None:
        self._end(value)

    def set_exception(self, error: Exception) -> None:
        self._end(error)

    def _end(self, value: bool | Exception) -> None:
        self.value = value
        over, self._over = self._over, _nobody
        self._loop.call_soon(over)


def _limit(code: ErrorCode, setting: str, value_s: float) -> StokerError:
    what = "no answer byte came" if code is ErrorCode.FIRST_TOKEN_TIMEOUT else "the answer did not go on"
    return EngineError(
        code,
        f"For {value_s:g} s {what}, which is this model's {setting}.",
        remedy=f"Raise {setting} for this model, or set it to 0 for no limit.",
        details={"setting": setting, "limit_s": value_s},
    )


def _incomplete() -> StokerError:
    return EngineError(
        ErrorCode.STREAM_INCOMPLETE,
        "The engine ended its stream before the answer was finished.",
        remedy="Send the request again; what has arrived is not a whole answer.",
    )


def _failed(status: int) -> StokerError:
    return EngineError(
        ErrorCode.ENGINE_FAILED,
        f"The engine answered with status {status} and no usable answer.",
        remedy="Look at the session's log for the cause.",
        details={"engine_status": status},
    )


def _bad_answer(why: str) -> StokerError:
    return EngineError(
        ErrorCode.ENGINE_BAD_ANSWER,
        f"The engine's answer cannot be used: {why}.",
        remedy="Send the request again; if it stays so, look at the session's log.",
    )
