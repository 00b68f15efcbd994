"""While a request waits for its place: what the client sees, and how its leaving takes the ticket away (R-13, R-46).

For the first seconds nothing is sent, so a refusal keeps its true status. After that a stream gets its head and a
comment at each interval. The ticket belongs to the caller; this only waits for it.
"""

from __future__ import annotations

import asyncio
from functools import partial

from stoker.errors import ErrorCode, InternalError, StokerError
from stoker.gateway.dialect import Dialect
from stoker.gateway.errors import id_line
from stoker.gateway.exchange import Exchange
from stoker.runtime.tickets import Ticket, TicketState

_STREAM_BLOCK = b"content-type: text/event-stream\r\ncache-control: no-cache\r\nstoker-speaker: gateway\r\n"


class ClientGoneError(Exception):
    """The client left; there is nobody to answer."""


class Waiter:
    """The two things that end a wait: the ticket's state and the client's leaving."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[bool] | None = None

    def wake(self, _ticket: Ticket) -> None:
        self.poke()

    def poke(self) -> None:
        self._settle(poked=True)

    def _settle(self, *, poked: bool) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(poked)

    async def pause(self, limit_s: float | None) -> bool:
        """Until poked or for ``limit_s``; True if poked. Nothing can be missed between a look and this call."""
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(limit_s, partial(self._settle, poked=False)) if limit_s is not None else None
        try:
            return await self._future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()


class Wait:
    """One request's wait, over all its tickets."""

    __slots__ = ("_block", "_dialect", "_every_s", "_exchange", "_loop", "_request_id", "_streams", "_waiter", "began")

    def __init__(
        self,
        waiter: Waiter,
        exchange: Exchange,
        dialect: Dialect,
        request_id: str,
        block: bytes,
        *,
        streams: bool,
        every_s: float,
    ) -> None:
        self._exchange = exchange
        self._dialect = dialect
        self._request_id = request_id
        self._block = block
        self._streams = streams and every_s > 0
        self._every_s = every_s
        self._waiter = waiter
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time()

    async def granted(self, ticket: Ticket) -> None:
        """Returns when the ticket is granted; raises its error, or `ClientGoneError`."""
        exchange = self._exchange
        exchange.on_gone = self._waiter.poke
        try:
            while ticket.state is TicketState.WAITING and not exchange.is_gone:
                if not await self._waiter.pause(self._every_s if self._streams else None):
                    self._comment(ticket)
        finally:
            exchange.on_gone = None
            exchange.probe_comment = None
        if exchange.is_gone:
            raise ClientGoneError
        if ticket.state is not TicketState.GRANTED:
            raise _refusal(ticket)

    def _comment(self, ticket: Ticket) -> None:
        exchange = self._exchange
        if ticket.state is not TicketState.WAITING or exchange.is_gone:
            return
        if not exchange.is_started:
            exchange.start(200, _STREAM_BLOCK + id_line(self._request_id) + self._block, None)
        comment = self._dialect.keepalive(ticket.blocked_by, int(self._loop.time() - self.began))
        exchange.probe_comment = comment
        if not exchange.write_paused:
            exchange.write(comment)
        exchange.flush()


def _refusal(ticket: Ticket) -> StokerError:
    if ticket.error is not None:
        return ticket.error
    return InternalError(ErrorCode.INTERNAL, f"A ticket ended as {ticket.state} without an error.")
