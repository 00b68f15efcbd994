"""The gateway: the steps of a request in their order (R-1), as one bare ASGI callable (R-50).

Protocol, Host, Origin, route and method, declared length, body, peek, name, ticket, grant, relay, release. A refusal
at one step leaves nothing in a later one. A grant is left exactly once, whatever happens in between (R-11, R-12).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from itertools import count
from typing import Any

from stoker.errors import EngineError, ErrorCode, InternalError, StokerError, UsageError
from stoker.gateway.bodies import BodyRoom
from stoker.gateway.errors import Answer, error_answer, id_line
from stoker.gateway.exchange import Exchange
from stoker.gateway.free import free_answer, unknown_model
from stoker.gateway.gate import Passed, Stopped, Verdict, judge, preflight_block
from stoker.gateway.openai import OPENAI
from stoker.gateway.peek import Peeked, peek
from stoker.gateway.policy import body_for, declared_route
from stoker.gateway.relay import Relay, StillLoadingError, Work
from stoker.gateway.routes import WORK_ROUTES, PublicRoute, RouteKind, find_route
from stoker.gateway.settings import GatewaySettings
from stoker.gateway.upstream import UpstreamPools
from stoker.gateway.waiting import ClientGoneError, Wait, Waiter
from stoker.gateway.wishes import Wishes, read_wishes
from stoker.ids import DeploymentName, RequestId
from stoker.runtime.tickets import Ask, End, Ticket, TicketState
from stoker.runtime.uses import Uses

Message = MutableMapping[str, Any]
_log = logging.getLogger("stoker.gateway")
_ABORTED = frozenset({End.CLIENT_GONE, End.TIMEOUT})


class _Job:
    """One work request that the kernel was asked for. ``block``: header lines of ours for its answer."""

    __slots__ = ("block", "cors", "exchange", "peeked", "request_id", "route", "waiter", "was_loading")

    def __init__(self, exchange: Exchange, route: PublicRoute, request_id: str, cors: bytes, peeked: Peeked) -> None:
        self.exchange = exchange
        self.route = route
        self.request_id = request_id
        self.cors = self.block = cors
        self.peeked = peeked
        self.waiter = Waiter()
        self.was_loading = False


class Gateway:
    """Serves the exchanges of `GatewayProtocol`. ``settings`` may be replaced at any time (R-104)."""

    def __init__(self, uses: Uses, pools: UpstreamPools, settings: GatewaySettings | None = None) -> None:
        self.uses = uses
        self.pools = pools
        self.settings = settings or GatewaySettings()
        self.room = BodyRoom()
        self._prefix = f"req_{secrets.token_hex(6)}"
        self._numbers = count(1)

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """ASGI. Body and answer go through the exchange in the scope, since ASGI cannot abort or watch a client."""
        del receive, send
        await self.serve(scope["extensions"]["stoker.exchange"])

    def refusal(self, error: StokerError) -> bytes:
        """A whole answer to a request that never became one, with its connection closed."""
        answer = error_answer(error, self._next_id(), OPENAI)
        head = b"HTTP/1.1 %d \r\n%bcontent-length: %d\r\nconnection: close\r\n\r\n"
        return head % (answer.status, answer.block, len(answer.body)) + answer.body

    async def serve(self, exchange: Exchange) -> None:
        request_id = self._next_id()
        cors = b""
        try:
            verdict = self._judge(exchange)
            cors = verdict.cors
            if isinstance(verdict, Stopped):
                raise verdict.error  # noqa: TRY301 - one place turns errors into answers
            route = self._route(exchange)
            if exchange.method == "OPTIONS" and verdict.origin is not None and exchange.head.preflight_method:
                exchange.answer(
                    Answer(204, id_line(request_id) + preflight_block(exchange.head, verdict, route.methods), b"")
                )
                return
            self._check_method(exchange, route)
            if route.kind is RouteKind.WORK:
                await self._work(exchange, route, request_id, cors)
            else:
                exchange.answer(await self._free(route, request_id), cors)
        except ClientGoneError:
            return
        except StokerError as error:
            self._refuse(exchange, error, request_id, cors)
        except Exception as exc:  # noqa: BLE001 -- the boundary of one request: a defect ends it, not the daemon
            self._refuse(exchange, self._defect(exc), request_id, cors)

    def _next_id(self) -> str:
        return f"{self._prefix}{next(self._numbers):x}"

    # -- before the body -------------------------------------------------------------------------------------------
    def _judge(self, exchange: Exchange) -> Verdict:
        head, settings = exchange.head, self.settings
        if head.judged_by is settings and exchange.target.startswith(b"/"):
            verdict = head.verdict
            assert isinstance(verdict, Passed | Stopped)
            return verdict
        verdict = judge(head, exchange.target, exchange.local_address, settings)
        if exchange.target.startswith(b"/"):
            head.judged_by, head.verdict = settings, verdict
        return verdict

    def _route(self, exchange: Exchange) -> PublicRoute:
        route = find_route(exchange.target)
        if route is None:
            raise UsageError(
                ErrorCode.ROUTE_NOT_FOUND,
                "There is nothing at this address.",
                remedy="Use one of the documented routes, such as POST /v1/chat/completions.",
            )
        return route

    def _check_method(self, exchange: Exchange, route: PublicRoute) -> None:
        if exchange.method not in route.methods:
            raise UsageError(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"{route.path} takes {', '.join(route.methods)}, not {exchange.method}.",
                remedy=f"Use {route.methods[0]}.",
                details={"allow": list(route.methods)},
            )
        if exchange.head.expect not in {b"", b"100-continue"}:
            raise UsageError(
                ErrorCode.EXPECTATION_FAILED,
                "The only expectation that can be met is 100-continue.",
                remedy="Leave out the Expect field.",
            )
        exchange.intake.refuse_length()

    async def _free(self, route: PublicRoute, request_id: str) -> Answer:
        answer = free_answer(route, self.uses, OPENAI, request_id)
        if answer is None:
            for name in route.names:
                if await self.uses.look_up(name) is not None:
                    answer = free_answer(route, self.uses, OPENAI, request_id)
                    break
        if answer is None:
            name = route.names[0]
            raise unknown_model(name, self.uses.near_names(name))
        return answer

    # -- work ------------------------------------------------------------------------------------------------------
    async def _work(self, exchange: Exchange, route: PublicRoute, request_id: str, cors: bytes) -> None:
        wishes = read_wishes(exchange.head)
        exchange.send_continue()
        body = await exchange.intake.whole()
        if exchange.is_gone:
            raise ClientGoneError
        peeked = peek(body)
        OPENAI.check(route.path, peeked)
        ask = Ask(
            RequestId(request_id),
            await self._deployment(peeked.model),
            wishes.max_wait_s,
            wishes.keep_alive_s,
            wishes.may_load,
            _client_key(exchange, wishes),
        )
        job = _Job(exchange, route, request_id, cors, peeked)
        await self._carry_out(job, self.uses.ask(ask, job.waiter.wake))

    async def _carry_out(self, job: _Job, ticket: Ticket, relay: Relay | None = None) -> None:
        """A ticket to its end: wait, relay, leave. ``relay`` has begun and goes on."""
        end = End.CLIENT_GONE
        try:
            while True:
                if relay is None:
                    if ticket.state is TicketState.WAITING:
                        wait = Wait(
                            job.waiter, job.exchange, OPENAI, job.request_id, job.cors,
                            streams=job.peeked.stream, every_s=self.settings.keepalive_after_s,
                        )  # fmt: skip
                        await wait.granted(ticket)
                        job.block = job.cors + _waited(ticket, wait.began)
                    end = End.REFUSED
                    relay = self._relay(ticket, job)
                try:
                    await relay.run()
                    return  # noqa: TRY300 - the end of the good path reads here
                except StillLoadingError as exc:
                    if job.was_loading:
                        raise _never_ready(ticket) from exc
                    relay, end = None, End.CLIENT_GONE
                    self._wait_again(job, ticket)
        except StokerError as error:  # told before the place is given back, which may take the engine a while
            self._refuse(job.exchange, error, job.request_id, job.cors)
        finally:
            await self._leave(ticket, relay.end if relay is not None else end, job.peeked)

    def _wait_again(self, job: _Job, ticket: Ticket) -> None:
        """R-45: the engine is not ready after all; the ticket has its old rank again, once."""
        job.was_loading = True
        self.uses.requeue(ticket)

    # -- the usual request -----------------------------------------------------------------------------------------
    def begin(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Serve a request: by callbacks alone where nothing has to be waited for, else by the coroutine returned.

        The usual request has a head that is known, its body at hand, a place that is free and a connection too. What
        is refused before the kernel was asked is refused by `serve`, which looks at it afresh.
        """
        head, route, settings = exchange.head, WORK_ROUTES.get(exchange.target), self.settings
        verdict = head.verdict
        body = exchange.intake.at_hand()
        if (
            route is None or exchange.method != "POST" or body is None or head.stoker or head.expect
            or head.judged_by is not settings or not isinstance(verdict, Passed)
        ):  # fmt: skip
            return self.serve(exchange)
        try:
            peeked = peek(body)
            OPENAI.check(route.path, peeked)
        except Exception:  # noqa: BLE001 -- whatever it is, `serve` meets it again and answers it
            return self.serve(exchange)
        found = self.uses.find(peeked.model)
        if found is None:
            return self.serve(exchange)
        job = _Job(exchange, route, self._next_id(), verdict.cors, peeked)
        try:
            ticket = self.uses.ask(Ask(RequestId(job.request_id), found, client=exchange.peer), job.waiter.wake)
        except Exception as exc:  # noqa: BLE001 -- the boundary of one request
            self._refuse(exchange, self._told(exc), job.request_id, job.cors)
            exchange.drop()
            return None
        if ticket.state is not TicketState.GRANTED:
            return self._finish(job, ticket)
        try:
            relay = self._relay(ticket, job)
        except Exception:  # noqa: BLE001 -- `_finish` meets it again and answers it
            return self._finish(job, ticket)
        if not relay.begin(partial(self._ended, job, ticket, relay)):
            return self._finish(job, ticket)
        return None

    def _ended(self, job: _Job, ticket: Ticket, relay: Relay) -> None:
        """A relay that `begin` began is over, or cannot go on without waiting."""
        exchange, outcome = job.exchange, relay.outcome()
        if outcome is False:
            exchange.line.go_on(exchange, self._finish(job, ticket, relay))
            return
        if isinstance(outcome, StillLoadingError):
            self._wait_again(job, ticket)
            exchange.line.go_on(exchange, self._finish(job, ticket))
            return
        if isinstance(outcome, Exception):
            self._refuse(exchange, self._told(outcome), job.request_id, job.cors)
        if relay.end in _ABORTED and _settle_s(ticket, job.peeked) > 0:
            exchange.line.go_on(exchange, self._leave(ticket, relay.end, job.peeked))
            return
        self.uses.leave(ticket, relay.end)
        exchange.drop()

    async def _finish(self, job: _Job, ticket: Ticket, relay: Relay | None = None) -> None:
        try:
            await self._carry_out(job, ticket, relay)
        except ClientGoneError:
            return
        except Exception as exc:  # noqa: BLE001 -- the boundary of one request: a defect ends it, not the daemon
            self._refuse(job.exchange, self._told(exc), job.request_id, job.cors)

    def _told(self, exc: Exception) -> StokerError:
        return exc if isinstance(exc, StokerError) else self._defect(exc)

    async def _deployment(self, name: str) -> DeploymentName:
        found = self.uses.find(name)
        if found is None:
            found = await self.uses.look_up(name)
        if found is None:
            raise unknown_model(name, self.uses.near_names(name))
        return found

    def _relay(self, ticket: Ticket, job: _Job) -> Relay:
        door = ticket.door
        assert door is not None
        pool = self.pools.pool(door)
        engine_route = declared_route(pool, OPENAI, job.route.path)
        body = body_for(door, OPENAI, engine_route, job.peeked)
        return Relay(
            Work(job.request_id, id_line(job.request_id), OPENAI, engine_route, job.peeked, body, job.block),
            pool,
            job.exchange,
        )

    async def _leave(self, ticket: Ticket, end: End, peeked: Peeked) -> None:
        """Give the place back; after an abort not before the engine has had its time to stop working (R-83)."""
        try:
            if end in _ABORTED and ticket.state is TicketState.GRANTED:
                settle_s = _settle_s(ticket, peeked)
                if settle_s > 0:
                    await asyncio.sleep(settle_s)
        finally:
            self.uses.leave(ticket, end)

    # -- refusals --------------------------------------------------------------------------------------------------
    def _refuse(self, exchange: Exchange, error: StokerError, request_id: str, cors: bytes) -> None:
        if exchange.is_gone or exchange.is_complete:
            return
        if not exchange.is_started:
            exchange.answer(error_answer(error, request_id, OPENAI), cors)
            return
        exchange.write(OPENAI.error_event(error, request_id) + OPENAI.end_mark)
        exchange.finish()

    def _defect(self, exc: Exception) -> StokerError:
        error_id = f"err_{secrets.token_hex(6)}"
        _log.error("a request ended by a defect (%s)", error_id, exc_info=exc)
        return InternalError(
            ErrorCode.INTERNAL,
            "Stoker made a mistake with this request.",
            remedy=f"Report it with the lines around {error_id} in the daemon's log.",
            details={"error_id": error_id},
        )


def _client_key(exchange: Exchange, wishes: Wishes) -> str:
    return f"{exchange.peer}/{wishes.label}" if wishes.label else exchange.peer


def _settle_s(ticket: Ticket, peeked: Peeked) -> float:
    """How long an aborted engine may go on working: 0 where it stops at once."""
    if ticket.door is None:
        return 0.0
    abort = ticket.door.wire.abort
    how = abort.streamed if peeked.stream else abort.plain
    return abort.settle_s if how == "runs-on" else 0.0


def _waited(ticket: Ticket, began: float) -> bytes:
    """R-47: what an answer that waited says about it."""
    assert ticket.door is not None
    waited_ms = int(1000 * ((ticket.granted_at or began) - began))
    name = b"load" if ticket.blocked_by == "load" else b"queue"
    return b"stoker-%b-ms: %d\r\nstoker-generation: %d\r\nstoker-replica: %d\r\n" % (
        name, max(0, waited_ms), ticket.door.generation, ticket.door.replica,
    )  # fmt: skip


def _never_ready(ticket: Ticket) -> StokerError:
    return EngineError(
        ErrorCode.ENGINE_FAILED,
        f"The engine of {ticket.deployment!r} said twice that it is still loading, though it was ready before.",
        remedy="Send the request again; if it stays so, stop the session.",
    )
