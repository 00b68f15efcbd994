"""Tickets and grants: who may use which replica now (R-5 to R-16, R-22, R-37, R-43 to R-49).

At every instant a place is free or owned by exactly one grant; a grant ends exactly once, by its first end. The path
to a ready model is one call in (`Intake.ask`) and one out (`Intake.leave`): no queue hop, no task, no copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stoker.domain.queueing import Entry, accepts, retry_after_s
from stoker.domain.restart import Held, after_answer, may_start
from stoker.domain.routing import Candidate, route
from stoker.domain.session import Cancel, InFlightZero, Liveness, Phase, Reason, Stop
from stoker.errors import ErrorCode, StokerError, error_for
from stoker.ids import TicketId
from stoker.runtime.machine import Machine
from stoker.runtime.outbox import Wake, WriteHold
from stoker.runtime.state import LIVE, LOADING, Deployment, Session
from stoker.runtime.tickets import Ask, End, Ticket, TicketState


class Intake:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._state = machine.state
        self._asked = 0

    # -- at the door -----------------------------------------------------------------------------------------------

    def ask(self, ask: Ask, wake: Callable[[Ticket], None]) -> Ticket:
        """A ticket for ``ask``: granted in this call if a place is free and nobody waits before it (R-6).

        Raises:
            StokerError: refused at the door; nothing is queued, loaded or counted as use.
        """
        state = self._state
        deployment, sessions = self._admissible(ask)
        self._asked += 1
        ticket = Ticket(
            TicketId(f"tkt_{state.instance}_{self._asked}"), ask, deployment.name, queued_at=state.now, wake=wake
        )
        if not deployment.queue:
            session = self._place(deployment, sessions)
            if session is not None:
                self._grant(ticket, deployment, session)
                return ticket
        self._check_limits(deployment, sessions)
        self._enqueue(ticket, deployment)
        return ticket

    def _admissible(self, ask: Ask) -> tuple[Deployment, list[Session]]:
        state = self._state
        if state.phase != "ready":
            if state.phase == "stopping":
                raise shutting_down()
            raise error_for(
                ErrorCode.DAEMON_STARTING, "Stoker is starting.", remedy="Try again in a moment.", retry_after_s=1
            )
        deployment = state.deployments.get(ask.deployment)
        if deployment is None:
            raise error_for(ErrorCode.MODEL_NOT_FOUND, f"There is no model named {ask.deployment!r}.")
        if deployment.removing is not None:
            raise deployment_removed(deployment)
        sessions = state.of(deployment)
        for session in sessions:
            if session.state.phase in LIVE:
                break
        else:
            if not (ask.may_load and deployment.spec.load_on_demand):
                raise error_for(
                    ErrorCode.NOT_LOADED,
                    f"{deployment.name} is not loaded and may not be loaded by this request.",
                    remedy=f"Load it with `stoker load {deployment.name}`.",
                    retry_after_s=5,
                )
            self._check_hold(deployment)
        return deployment, sessions

    def _check_hold(self, deployment: Deployment) -> None:
        replica = deployment.replica(0)
        standing = may_start(replica.restart, self._state.now)
        if isinstance(standing, Held):
            raise crash_loop_held(deployment, standing, self._state.now)

    def _check_limits(self, deployment: Deployment, sessions: list[Session]) -> None:
        limits = self._machine.limits
        waiting, places = len(deployment.queue), self.places(deployment, sessions)
        spec = deployment.spec
        if not accepts(open_requests=waiting + deployment.in_flight, places=places, max_queued=spec.max_queued):
            raise error_for(
                ErrorCode.QUEUE_FULL,
                f"{deployment.name} has {deployment.in_flight} requests running and {waiting} waiting; "
                f"max_queued allows {spec.max_queued} beyond its {places} places.",
                remedy=f"Try again later, or raise max_queued of {deployment.name}.",
                details={
                    "setting": f'models."{deployment.name}".max_queued', "value": spec.max_queued, "places": places,
                    "in_flight": deployment.in_flight, "waiting": waiting,
                },
                retry_after_s=retry_after_s(waiting=waiting, places=places, mean_service_s=deployment.mean_service_s),
            )  # fmt: skip
        if len(self._state.waiting) >= limits.max_waiting_total:
            raise error_for(
                ErrorCode.QUEUE_FULL,
                f"{len(self._state.waiting)} requests wait in all; queue.max_waiting_total is "
                f"{limits.max_waiting_total}.",
                remedy="Try again later, or raise queue.max_waiting_total.",
                details={"setting": "queue.max_waiting_total", "value": limits.max_waiting_total},
                retry_after_s=retry_after_s(waiting=waiting, places=places, mean_service_s=deployment.mean_service_s),
            )

    def places(self, deployment: Deployment, sessions: list[Session]) -> int:
        """R-9: widths of replicas that are ready or on their way, and at least one planned replica."""
        widths = [self._width(deployment, session) for session in sessions if session.phase in LIVE]
        planned = deployment.spec.max_in_flight or deployment.spec.slots or 1
        return sum(widths) or planned

    @staticmethod
    def _width(deployment: Deployment, session: Session) -> int:
        if session.phase is Phase.READY:
            return session.width
        return deployment.spec.max_in_flight or (session.plan.slots if session.plan else 1)

    def _enqueue(self, ticket: Ticket, deployment: Deployment, *, front: bool = False) -> None:
        state, ask = self._state, ticket.ask
        wait_s = deployment.spec.max_wait_s or math.inf
        hard = math.inf if ask.max_wait_s is None else ticket.queued_at + ask.max_wait_s
        entry = Entry(ticket.ticket_id, ticket.queued_at, ticket.queued_at + wait_s, hard)
        (deployment.queue.push_front if front else deployment.queue.push)(entry)
        deployment.tickets[ticket.ticket_id] = ticket
        ticket.blocked_by = state.blocked_by(deployment)
        state.waiting[ticket.ticket_id] = ticket
        deployment.stopped_by_operator = False
        if any(session.phase in LOADING for session in state.of(deployment)):
            deployment.queue.stop_clock(state.now)
        state.alarms.at(min(entry.deadline, entry.hard_deadline))
        state.stale_plan = True
        self._machine.announce(
            "ticket.queued",
            ticket_id=ticket.ticket_id,
            request_id=ask.request_id,
            deployment=deployment.name,
            lane="interactive",
            priority="normal",
            key_id=None,
            position=len(deployment.queue) - 1,
            starts_by=None,
            blocked_by=ticket.blocked_by,
        )

    # -- grants ----------------------------------------------------------------------------------------------------

    def _place(self, deployment: Deployment, sessions: list[Session]) -> Session | None:
        if deployment.changing:  # the next request is served by what was asked for last (S-12), in a moment
            return None
        if len(sessions) == 1:  # the common case, without building candidates
            session = sessions[0]
            free = session.door is not None and session.in_flight < session.width
            usable = session.phase is Phase.READY and session.earmarked_for is None
            return session if free and usable and session.state.liveness is not Liveness.DEGRADED else None
        chosen = route(
            Candidate(
                session.generation,
                session.state.replica,
                session.width,
                session.in_flight,
                earmarked=session.earmarked_for is not None,
                degraded=session.state.liveness is Liveness.DEGRADED,
            )
            for session in sessions
            if session.phase is Phase.READY and session.door is not None
        )
        return None if chosen is None else self._state.sessions[chosen]

    def _grant(self, ticket: Ticket, deployment: Deployment, session: Session) -> None:
        now = self._state.now
        ticket.state = TicketState.GRANTED
        ticket.door = session.door
        ticket.granted_at = now
        session.grants[ticket.ticket_id] = ticket
        session.recent_grants.append(now)
        deployment.in_flight += 1
        deployment.stopped_by_operator = False
        if ticket.ask.keep_alive_s is not None:
            session.keep_alive_wishes[ticket.ask.client] = ticket.ask.keep_alive_s

    def grant_waiting(self, deployment: Deployment) -> None:
        """Hand every free place of ``deployment`` to the tickets that wait for it, in order."""
        while deployment.queue:
            session = self._place(deployment, self._state.of(deployment))
            if session is None:
                return
            head = deployment.queue.head()
            assert head is not None
            ticket = self._take_out(deployment, head.ticket_id)
            self._grant(ticket, deployment, session)
            self._machine.send(Wake(ticket))
            waited_s = self._state.now - ticket.queued_at
            self._state.meters.observe("stoker_ticket_wait_seconds", deployment.name, "interactive", value=waited_s)
            self._machine.announce(
                "ticket.granted",
                ticket_id=ticket.ticket_id,
                request_id=ticket.ask.request_id,
                deployment=deployment.name,
                replica=session.state.replica,
                generation=session.generation,
                queue_ms=round(waited_s * 1000),
            )

    def _take_out(self, deployment: Deployment, ticket_id: TicketId) -> Ticket:
        deployment.queue.remove(ticket_id)
        del self._state.waiting[ticket_id]
        return deployment.tickets.pop(ticket_id)

    # -- ends ------------------------------------------------------------------------------------------------------

    def leave(self, ticket: Ticket, end: End) -> None:
        """The request is over: a waiting ticket goes as if it had never come, a grant gives its place back.

        R-11 to R-13. Idempotent: a second end changes nothing and is counted.
        """
        deployment = self._state.deployments.get(ticket.deployment)
        if ticket.state is TicketState.WAITING:
            if deployment is not None and ticket.ticket_id in deployment.tickets:
                self._take_out(deployment, ticket.ticket_id)
                self._settle(ticket, deployment, TicketState.CANCELLED, by="caller")
                self._abandon(deployment)
            return
        if ticket.state is not TicketState.GRANTED:
            if ticket.state is TicketState.RELEASED:
                self._state.meters.count("stoker_kernel_late_releases_total")
            return
        ticket.state = TicketState.RELEASED
        ticket.ended_at = self._state.now
        assert ticket.door is not None
        session = self._state.sessions.get(ticket.door.generation)
        if session is None or session.grants.pop(ticket.ticket_id, None) is None:
            self._state.meters.count("stoker_kernel_late_releases_total")
            return
        if deployment is not None:
            deployment.in_flight -= 1
        self._given_back(ticket, session, deployment, end)

    def _given_back(self, ticket: Ticket, session: Session, deployment: Deployment | None, end: End) -> None:
        state = self._state
        session.last_end = state.now
        session.last_used_wall = state.wall
        if deployment is not None:
            deployment.last_used_wall = state.wall
            if end is End.COMPLETE and ticket.granted_at is not None:
                self._forgive(deployment, session.state.replica)
                deployment.mean_service_s += 0.1 * (state.now - ticket.granted_at - deployment.mean_service_s)
        self.place_freed(session, deployment)

    def _forgive(self, deployment: Deployment, index: int) -> None:
        """A completed answer restores the budget, and ends a hold whose trial it was (S-113)."""
        replica = deployment.replica(index)
        restart = replica.restart
        if not restart.failures and restart.held_until is None:
            return
        replica.restart = after_answer(restart)
        if restart.held_until is not None:
            self._machine.send(WriteHold(deployment.name, index, None))
            self._machine.announce("replica.released", deployment=deployment.name, replica=index, by="answer")

    def place_freed(self, session: Session, deployment: Deployment | None) -> None:
        """A place of ``session`` came back: the next ticket has it in this same step (R-11)."""
        state = self._state
        if session.phase is Phase.READY:
            if deployment is not None and deployment.queue:
                self.grant_waiting(deployment)
            if not session.in_flight:
                if session.state.liveness is Liveness.DEGRADED:  # its work was all that kept it (S-110)
                    self._machine.feed(session, Stop(session.generation, Reason.HUNG, mode="now"))
                    return
                self.arm_idle(session)
                if state.waiting or session.earmarked_for is not None:
                    state.stale_plan = True
        elif session.phase is Phase.DRAINING and not session.in_flight:
            self._machine.feed(session, InFlightZero(session.generation))

    def arm_idle(self, session: Session) -> None:
        """One alarm stands per session; when it rings the true idle deadline is looked at afresh."""
        when = session.idle_at
        if when < math.inf and (session.idle_alarm_at is None or when < session.idle_alarm_at):
            session.idle_alarm_at = when
            self._state.alarms.at(when)

    def release_all(self, session: Session) -> None:
        """A life is gone: every grant of that generation ends, and none of another (R-15)."""
        deployment = self._state.deployments.get(session.state.deployment)
        for ticket in list(session.grants.values()):
            ticket.state = TicketState.RELEASED
            ticket.ended_at = self._state.now
            if deployment is not None:
                deployment.in_flight -= 1
        session.grants.clear()

    def requeue(self, ticket: Ticket) -> None:
        """A granted ticket whose engine still said "loading" takes its old rank, once (R-45)."""
        deployment = self._state.deployments.get(ticket.deployment)
        if ticket.state is not TicketState.GRANTED or ticket.requeued or deployment is None or ticket.door is None:
            return
        session = self._state.sessions.get(ticket.door.generation)
        if session is not None and session.grants.pop(ticket.ticket_id, None) is not None:
            deployment.in_flight -= 1
        ticket.requeued = True
        ticket.state, ticket.door, ticket.granted_at = TicketState.WAITING, None, None
        if self._state.phase == "stopping":
            self._settle(ticket, deployment, TicketState.REFUSED, by="kernel", error=shutting_down())
        elif deployment.removing is not None:
            self._settle(ticket, deployment, TicketState.REFUSED, by="kernel", error=deployment_removed(deployment))
        else:
            self._enqueue(ticket, deployment, front=True)
        if session is not None:  # a drain that waited only for this request is over
            self.place_freed(session, deployment)

    # -- refusals --------------------------------------------------------------------------------------------------

    def _settle(
        self, ticket: Ticket, deployment: Deployment, state: TicketState, *, by: str, error: StokerError | None = None
    ) -> None:
        """End a ticket that is out of its queue, tell its task, and publish it."""
        now = self._state.now
        ticket.state, ticket.error, ticket.ended_at = state, error, now
        self._state.meters.count("stoker_tickets_total", deployment.name, str(state))
        if state is not TicketState.CANCELLED or error is not None:
            self._machine.send(Wake(ticket))
        code = error.code if error is not None else ErrorCode.REQUEST_CANCELLED
        self._machine.announce(
            f"ticket.{state}",
            ticket_id=ticket.ticket_id,
            request_id=ticket.ask.request_id,
            deployment=deployment.name,
            code=code,
            waited_ms=round((now - ticket.queued_at) * 1000),
            by=by,
        )

    def refuse_waiting(self, deployment: Deployment, error: StokerError) -> None:
        """Every waiting ticket of a deployment gets the one error (R-44)."""
        for ticket_id in list(deployment.queue):
            ticket = self._take_out(deployment, ticket_id)
            self._settle(ticket, deployment, TicketState.REFUSED, by="kernel", error=error)

    def cancel(self, ticket: Ticket, error: StokerError) -> None:
        """An operator ends a waiting ticket (R-25)."""
        deployment = self._state.deployments[ticket.deployment]
        self._take_out(deployment, ticket.ticket_id)
        self._settle(ticket, deployment, TicketState.CANCELLED, by="operator", error=error)
        self._abandon(deployment)

    def expire(self) -> None:
        """Tickets past their deadline end with the setting, its value and what they waited for (R-22)."""
        state = self._state
        for name in sorted({ticket.deployment for ticket in state.waiting.values()}):
            deployment = state.deployments[name]
            for ticket_id in deployment.queue.expired(state.now):
                ticket = self._take_out(deployment, ticket_id)
                error = self._timeout(ticket, deployment)
                self._settle(ticket, deployment, TicketState.EXPIRED, by="deadline", error=error)
                self._abandon(deployment)
            state.alarms.at(deployment.queue.next_deadline())

    def _timeout(self, ticket: Ticket, deployment: Deployment) -> StokerError:
        waited_s = self._state.now - ticket.queued_at
        ticket.blocked_by = self._state.blocked_by(deployment)
        own = ticket.ask.max_wait_s is not None and ticket.ask.max_wait_s <= waited_s
        setting = "Stoker-Wait" if own else f'models."{deployment.name}".max_wait_s'
        value = ticket.ask.max_wait_s if own else deployment.spec.max_wait_s
        sessions = self._state.of(deployment)
        places = self.places(deployment, sessions)
        return error_for(
            ErrorCode.QUEUE_TIMEOUT,
            f"The request waited {waited_s:.1f} s for {deployment.name} ({ticket.blocked_by}); "
            f"{setting} is {value:g} s.",
            remedy="Try again later, or allow a longer wait.",
            details={
                "setting": setting, "value": value, "waited_ms": round(waited_s * 1000), "places": places,
                "in_flight": deployment.in_flight, "waiting": len(deployment.queue), "blocked_by": ticket.blocked_by,
            },
            retry_after_s=retry_after_s(
                waiting=len(deployment.queue), places=places, mean_service_s=deployment.mean_service_s
            ),
        )  # fmt: skip

    def _abandon(self, deployment: Deployment) -> None:
        """The last caller of a load has gone (S-16). Under ``finish`` it goes on, and gives way if it must."""
        self._state.stale_plan = True
        if deployment.queue or deployment.wants or deployment.spec.pinned:
            return
        if self._machine.limits.abandoned_load == "cancel":
            for session in self._state.of(deployment):
                if session.phase in LOADING and not session.operations:  # an explicit load is a standing want
                    self._machine.feed(session, Cancel(session.generation, Reason.ABANDONED, by="abandoned"))


def shutting_down() -> StokerError:
    return error_for(
        ErrorCode.SHUTTING_DOWN, "Stoker is shutting down.", remedy="Try again when it runs again.", retry_after_s=5
    )


def deployment_removed(deployment: Deployment) -> StokerError:
    return error_for(
        ErrorCode.DEPLOYMENT_REMOVED, f"{deployment.name} is being removed.", remedy="Ask for another model."
    )


def crash_loop_held(deployment: Deployment, held: Held, now: float) -> StokerError:
    wait_s = None if held.until is None else max(1, math.ceil(held.until - now))
    when = "not started again by itself" if wait_s is None else f"tried again in {wait_s} s"
    return error_for(
        ErrorCode.CRASH_LOOP_HELD,
        f"{deployment.name} failed {held.failures} times and is {when}; the last cause: {held.message}",
        remedy=f"Mend the cause, then `stoker load {deployment.name}`.",
        details={"cause": held.code, "failures": held.failures},
        retry_after_s=wait_s,
    )
