"""The kernel: synchronous, sole owner of every piece of mutable runtime state (DESIGN section 1).

`Kernel.apply` runs pure domain steps until nothing changes; `Kernel.drain` hands out what the shell must carry out.
It never awaits, so it is atomic without a lock. Nobody decides on a snapshot taken outside: "make this ready" is a
command, not an ``if``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stoker.domain import lifecycle
from stoker.domain.lifecycle import PORT_ATTEMPTS, Outcome, Step
from stoker.domain.restart import Held, RestartState, after_failure, may_start
from stoker.domain.session import (
    ASKED,
    BecameReady,
    Cancel,
    CleanUp,
    Failure,
    Input,
    Liveness,
    LivenessChanged,
    Phase,
    Publish,
    Reason,
    RetryStop,
    SessionState,
    StageSeen,
    Started,
    Stop,
)  # fmt: skip
from stoker.errors import ErrorCode, error_for
from stoker.ids import Generation, PoolId, unit_name
from stoker.ports.clock import Clock
from stoker.ports.journal import Hold
from stoker.runtime import inputs
from stoker.runtime.changes import take_over
from stoker.runtime.intake import Intake, crash_loop_held, shutting_down
from stoker.runtime.machine import Machine, deployment_of, failure_error
from stoker.runtime.orders import Orders
from stoker.runtime.outbox import Assignment, Carry, Instruction, OpenDoor, Spawn, WriteHold
from stoker.runtime.room import Room
from stoker.runtime.stalls import Stalls
from stoker.runtime.state import LIVE, LOADING, Deployment, KernelState, Session, Want
from stoker.runtime.tickets import Ask, Door, End, Ticket

# A pass that settles nothing new ends the step; more passes than this are a defect, not a workload.
_MOST_PASSES = 1000
# Ends that say nothing against the engine or its settings (S-113, S-114).
_NOT_THE_ENGINE = ASKED | {Reason.ROOM_DENIED}


class Kernel:
    """All state, and the only hands on it. Times are loop seconds given by the caller."""

    def __init__(self, state: KernelState, clock: Clock, limits: inputs.Limits | None = None) -> None:
        self.state = state
        self.machine = Machine(state, clock, limits or inputs.Limits())
        self.intake = Intake(self.machine)
        self.room = Room(self.machine, self.intake)
        self.orders = Orders(self.machine, self.intake)
        self.stalls = Stalls(self.machine, self.room)
        self.room.on_want_failed = self.orders.on_want_failed  # type: ignore[method-assign]
        self.machine.after.append(self._after)
        self._clock = clock

    # -- the request path ------------------------------------------------------------------------------------------

    def ask(self, ask: Ask, wake: Callable[[Ticket], None], now: float) -> Ticket:
        """One call in: a grant, a place in the queue, or a refusal (`StokerError`)."""
        self._begin_step(now)
        ticket = self.intake.ask(ask, wake)
        if self.state.stale_plan:
            self._settle()
        return ticket

    def leave(self, ticket: Ticket, end: End, now: float) -> None:
        """One call out. Idempotent; cannot fail."""
        self._begin_step(now)
        self.intake.leave(ticket, end)
        if self.state.stale_plan:
            self._settle()

    # -- everything else -------------------------------------------------------------------------------------------

    def apply(self, incoming: Any, now: float) -> Any:
        """Carry out one command or take in one observation, then settle everything that follows from it.

        Raises:
            StokerError: the command is not possible; nothing was changed by it.
        """
        self._begin_step(now)
        self.state.meters.count("stoker_kernel_steps_total", type(incoming).__name__)
        try:
            return self._take(incoming)
        finally:
            self._settle()

    def drain(self) -> list[Instruction]:
        return self.machine.drain()

    def next_alarm(self) -> float:
        return self.state.alarms.next()

    def _begin_step(self, now: float) -> None:
        """Both clocks at once: views turn the one into the other, and events of a step carry its wall time."""
        self.state.now = now
        self.state.wall = self._clock.wall()

    def _settle(self) -> None:
        for _ in range(_MOST_PASSES):
            if not self.state.stale_plan:
                return
            self.state.stale_plan = False
            for deployment in [deployment for deployment in self.state.deployments.values() if deployment.wants]:
                self.orders.meet_wants(deployment)
            for name in sorted({ticket.deployment for ticket in self.state.waiting.values()}):
                self.intake.grant_waiting(self.state.deployments[name])
            self.room.plan()
        raise AssertionError("the kernel does not come to rest")

    def _take(self, incoming: Any) -> Any:
        match incoming:
            case inputs.TimePassed(net=net):
                self._time_passed(net=net)
            case inputs.Leave(ticket=ticket, end=end):
                self.intake.leave(ticket, end)
            case inputs.Requeue(ticket=ticket):
                self.intake.requeue(ticket)
            case inputs.CancelTicket():
                return self._cancel_ticket(incoming.ticket_or_request)
            case inputs.LoadDeployment():
                return self.orders.load(incoming)
            case inputs.UnloadDeployment():
                return self.orders.unload(incoming)
            case inputs.StopSession():
                return self.orders.stop(incoming)
            case inputs.ForceReleaseSession():
                return self.orders.force_release(incoming)
            case inputs.PinDeployment():
                return self.orders.pin(incoming)
            case inputs.ScaleDeployment():
                return self.orders.scale(incoming)
            case inputs.ReleaseHold():
                return self.orders.release_hold(incoming)
            case inputs.PutDeployment():
                return self.orders.put(incoming)
            case inputs.DeleteDeployment():
                return self.orders.delete(incoming)
            case inputs.CancelOperation():
                return self.orders.cancel(incoming)
            case inputs.SetBudget():
                self._set_budget(incoming)
            case inputs.BeginShutdown():
                self._begin_shutdown(incoming)
            case _:
                self._observe(incoming)
        return None

    def _observe(self, incoming: Any) -> None:
        match incoming:
            case inputs.Resolved():
                self._resolved(incoming)
            case inputs.Unresolved():
                self._unresolved(incoming)
            case inputs.HardwareRead(hardware=hardware):
                self.state.hardware = hardware
            case inputs.GenerationsStored(first=first, count=count):
                self.state.generations = iter([Generation(n) for n in range(first, first + count)])
                self.state.stale_plan = True
            case inputs.LeftoverFound():
                self._leftover_found(incoming)
            case inputs.LeftoverJudged():
                self._leftover_judged(incoming)
            case inputs.HoldsRead():
                self._holds_read(incoming)
            case inputs.OperationsRead(rows=rows):
                self.orders.restore(rows)
            case inputs.ModelsListed(specs=specs):
                self._models_listed(specs)
            case inputs.UnitUsed(generation=generation, measured=measured):
                if (session := self.state.sessions.get(generation)) is not None:
                    session.measured = measured
            case inputs.Launched():
                if (session := self.state.sessions.get(incoming.generation)) is not None:
                    session.launch_shown, session.env_names = incoming.argv_shown, incoming.env_names
                    session.token = incoming.token
            case inputs.Opened(reconciled=reconciled):
                self.state.phase = "ready"
                self.state.stale_plan = True
                self.machine.announce(
                    "daemon.started", instance=self.state.instance, version=self.state.version,
                    reconciled=dict(reconciled), resumed=[],
                )  # fmt: skip
            case _:
                self._observe_life(incoming)

    def _observe_life(self, incoming: Input) -> None:
        """An observation of one life; a generation that is not known changes nothing and is counted (S-4)."""
        session = self.state.sessions.get(incoming.generation)
        if session is None:
            self.state.meters.count("stoker_observations_dropped_total", type(incoming).__name__, "none")
            return
        match incoming:
            case Started(unit=unit, endpoint=endpoint):
                session.unit, session.endpoint = unit, endpoint
            case BecameReady(accepted=accepted, measured=measured, stages_ms=stages_ms):
                session.accepted, session.measured, session.stages_ms = accepted, measured, stages_ms
            case StageSeen():
                session.startup = {
                    "stage": incoming.stage, "percent": incoming.percent, "elapsed_ms": incoming.elapsed_ms,
                    "deadline_ms": incoming.deadline_ms,
                }  # fmt: skip
            case _:
                pass
        step = self.machine.feed(session, incoming)
        if step.outcome is Outcome.APPLIED and isinstance(incoming, LivenessChanged):
            self._liveness_changed(session)
        if isinstance(incoming, StageSeen):
            self.orders.progress(session)

    # -- what a step of a life means for the rest ------------------------------------------------------------------

    def _after(self, session: Session, before: SessionState, step: Step) -> None:
        for effect in step.effects:
            if isinstance(effect, Publish):
                self._on_event(session, effect)
        phase = step.state.phase
        if phase is before.phase:
            return
        if before.phase is Phase.READY:
            session.earmarked_for = None
        if phase is Phase.READY:
            self._on_ready(session)
        elif phase is Phase.STOP_UNCONFIRMED:
            self.orders.on_stop_unconfirmed(session)
        elif phase is Phase.GONE:
            if before.phase is Phase.RESERVED:  # nothing was prepared, but its supervisor has to go
                self.machine.send(Carry(session.generation, CleanUp(session.generation)))
            self._on_gone(session)
        if before.phase in LOADING and phase not in LOADING:
            deployment = deployment_of(self.state, session)
            if deployment is not None and not any(s.phase in LOADING for s in self.state.of(deployment)):
                deployment.queue.start_clock(self.state.now)
                self.state.alarms.at(deployment.queue.next_deadline())

    def _on_ready(self, session: Session) -> None:
        state, deployment = self.state, deployment_of(self.state, session)
        accepted, plan, prospect = session.accepted, session.plan, session.prospect
        assert accepted is not None
        assert plan is not None
        assert prospect is not None
        assert session.endpoint is not None
        spec = deployment.spec if deployment is not None else None
        session.width = (spec.max_in_flight if spec else None) or accepted.width
        session.last_end = state.now
        session.door = Door(
            session.generation, session.state.deployment, session.state.replica, session.endpoint,
            session.token, plan.deployment, accepted, prospect.adapter.wire(plan, accepted),
            first_token_timeout_s=spec.first_token_timeout_s if spec else 0.0,
            stream_idle_timeout_s=spec.stream_idle_timeout_s if spec else 0.0,
        )  # fmt: skip
        self.machine.send(OpenDoor(session.door))
        if deployment is not None:
            deployment.replica(session.state.replica).load_times_s.append(state.now - session.state.started_at)
            for stage, elapsed_ms in session.stages_ms.items():
                state.meters.observe("stoker_load_seconds", deployment.name, stage, value=elapsed_ms / 1000)
            deployment.blocked_on = ""
            deployment.replica(session.state.replica).port_losses = 0
            self.intake.grant_waiting(deployment)
        self.intake.arm_idle(session)
        state.meters.count("stoker_session_starts_total", session.state.deployment, "ready")
        for operation_id in session.operations:
            state.operations[operation_id].result["generation"] = session.generation
        self.orders.finish_all(session, frozenset({"load"}))

    def _on_gone(self, session: Session) -> None:
        state, deployment = self.state, deployment_of(self.state, session)
        state.ledger, _ = state.ledger.release(session.generation)
        self.intake.release_all(session)
        self.machine.forget_timers(session)
        if session.state.stop_begun_at is not None:
            stop_s = state.now - session.state.stop_begun_at
            state.meters.observe("stoker_stop_seconds", session.state.deployment, value=stop_s)
        del state.sessions[session.generation]
        state.meters.count("stoker_session_ends_total", session.state.deployment, str(session.state.reason))
        self.orders.finish_all(session, frozenset({"unload", "stop", "remove"}))
        if deployment is None:
            return
        replica = deployment.replica(session.state.replica)
        if replica.generation == session.generation:
            replica.generation = None
        self.orders.remove_if_empty(deployment)

    def _on_event(self, session: Session, published: Publish) -> None:
        deployment = deployment_of(self.state, session)
        failure = session.state.failure
        if published.event == "session.load-failed" and failure is not None:
            if deployment is not None and self._lost_a_port_race(deployment, session, failure):
                return
            error = failure_error(failure, session.state.deployment)
            if deployment is not None:
                deployment.problem = error
                self._count_failure(deployment, session, failure, crashed=False)
                self._end_waiters(deployment, session, error)
            self.orders.finish_all(session, frozenset({"load"}), error)
        elif published.event == "session.load-cancelled":
            self._on_load_cancelled(session, deployment)
        elif published.event == "session.crashed" and failure is not None and deployment is not None:
            deployment.problem = failure_error(failure, deployment.name)
            self._count_failure(deployment, session, failure, crashed=True)

    def _lost_a_port_race(self, deployment: Deployment, session: Session, failure: Failure) -> bool:
        """Somebody else took the chosen port first: another life on another port, three in all (S-44)."""
        replica = deployment.replica(session.state.replica)
        if failure.code != ErrorCode.PORT_IN_USE or deployment.spec.fixed_port is not None:
            return False
        replica.port_losses += 1
        if replica.port_losses >= PORT_ATTEMPTS:
            replica.port_losses = 0
            return False
        for operation_id in session.operations:
            if self.state.operations[operation_id].kind == "load":
                deployment.wants.append(Want(self.state.now, replica.index, operation_id))
        session.operations = [o for o in session.operations if self.state.operations[o].kind != "load"]
        return True

    def _on_load_cancelled(self, session: Session, deployment: Deployment | None) -> None:
        reason = session.state.reason
        error = error_for(ErrorCode.LOAD_CANCELLED, f"The load of {session.state.deployment} was cancelled ({reason}).")
        if reason is Reason.SHUTDOWN:
            error = shutting_down()
        if reason is Reason.SUPERSEDED:
            self.orders.move_on(session)
        self.orders.finish_all(session, frozenset({"load"}), error, cancelled=True)
        if deployment is not None and reason not in {Reason.SUPERSEDED, Reason.ABANDONED, Reason.CONFIG_CHANGED}:
            self._end_waiters(deployment, session, error)

    def _end_waiters(self, deployment: Deployment, session: Session, error: Any) -> None:
        """Tickets that waited for this load end with its one error, unless another replica can serve them (R-44)."""
        others = (s for s in self.state.of(deployment) if s is not session)
        if not any(s.phase in LIVE for s in others):
            self.intake.refuse_waiting(deployment, error)

    def _count_failure(self, deployment: Deployment, session: Session, failure: Failure, *, crashed: bool) -> None:
        """Back-off and holds; ends we asked for, and want of room, never count (S-113, S-114)."""
        if session.state.reason in _NOT_THE_ENGINE:
            return
        state = self.state
        replica = deployment.replica(session.state.replica)
        replica.last_failure = failure
        replica.restart = after_failure(
            replica.restart, now=state.now, code=failure.code, message=failure.message, jitter=self._clock.jitter(),
            crashed=crashed,
        )  # fmt: skip
        standing = may_start(replica.restart, state.now)
        if not isinstance(standing, Held):
            return
        until_wall = None if standing.until is None else state.wall + standing.until - state.now
        hold = Hold(
            deployment.name, replica.index, "crash-loop", failure.code, failure.message, standing.failures,
            until_wall, since=state.wall, trial_s=replica.restart.hold_s,
        )  # fmt: skip
        self.machine.send(WriteHold(deployment.name, replica.index, hold))
        self.machine.announce(
            "replica.held", deployment=deployment.name, replica=replica.index, cause=hold.cause, code=hold.code,
            failures=hold.failures, until=until_wall,
        )  # fmt: skip
        if crashed and not any(s.phase in LIVE for s in state.of(deployment) if s is not session):
            self.intake.refuse_waiting(deployment, crash_loop_held(deployment, standing, state.now))

    def _liveness_changed(self, session: Session) -> None:
        """An idle session that no longer answers is ended (S-110); one with work is given ``hang_s`` by its watcher."""
        deployment = deployment_of(self.state, session)
        if session.state.liveness is Liveness.DEGRADED and not session.in_flight:
            self.machine.feed(session, Stop(session.generation, Reason.HUNG, mode="now"))
        elif session.state.liveness is Liveness.OK and deployment is not None:
            self.intake.grant_waiting(deployment)

    # -- time ------------------------------------------------------------------------------------------------------

    def _time_passed(self, *, net: bool) -> None:
        state = self.state
        state.alarms.pass_by(state.now)
        granted_before = sum(len(session.grants) for session in state.sessions.values())
        self.machine.fire_timers()
        self.intake.expire()
        self.orders.expire_wants()
        self._end_idle()
        if state.waiting or any(d.wants or d.spec.pinned for d in state.deployments.values()):
            state.stale_plan = True
        if net:
            for name in {ticket.deployment for ticket in state.waiting.values()}:
                self.intake.grant_waiting(state.deployments[name])
            if sum(len(session.grants) for session in state.sessions.values()) > granted_before:
                state.meters.count("stoker_kernel_missed_wakeups_total")
            self.stalls.look()

    def _end_idle(self) -> None:
        """Sessions past their keep-alive end (R-48); one used meanwhile gets a later alarm."""
        for session in list(self.state.sessions.values()):
            if session.idle_alarm_at is None or session.idle_alarm_at > self.state.now:
                continue
            session.idle_alarm_at = None
            deployment = deployment_of(self.state, session)
            if session.phase is not Phase.READY or (deployment is not None and deployment.queue):
                continue
            if session.idle_at <= self.state.now:
                self.machine.feed(session, Stop(session.generation, Reason.IDLE))
            else:
                self.intake.arm_idle(session)

    # -- resolution ------------------------------------------------------------------------------------------------

    def _resolved(self, seen: inputs.Resolved) -> None:
        deployment = self.state.deployments.get(seen.deployment)
        if deployment is None:
            return
        deployment.resolving = False
        self.state.stale_plan = True
        if deployment.spec is not seen.spec:  # changed meanwhile: asked for again
            if deployment.changing:
                self.orders.prove(deployment)
            return
        changed = deployment.prospect is not None and deployment.prospect.load_key != seen.prospect.load_key
        if changed:
            for index in deployment.replicas:
                self.orders.lift(deployment, index, by="settings")
        deployment.prospect, deployment.prospect_fresh = seen.prospect, not deployment.changing
        if deployment.changing:  # asked for on behalf of what runs; the next start looks afresh
            deployment.changing = False
            take_over(self.machine, deployment)

    def _unresolved(self, seen: inputs.Unresolved) -> None:
        """No model, engine or valid settings: whoever waits gets the reason, and nothing was touched (S-13)."""
        deployment = self.state.deployments.get(seen.deployment)
        if deployment is None:
            return
        deployment.resolving = False
        self.state.stale_plan = True
        if deployment.spec is not seen.spec:
            if deployment.changing:
                self.orders.prove(deployment)
            return
        deployment.changing = False
        deployment.problem = seen.error
        is_up = any(session.phase in LIVE for session in self.state.of(deployment))
        if not is_up:
            self.intake.refuse_waiting(deployment, seen.error)
        for want in list(deployment.wants):
            deployment.wants.remove(want)
            self.orders.on_want_failed(want, seen.error)
        if deployment.spec.pinned and not is_up:
            deployment.stopped_by_operator = True
            self.state.warnings.append(f"Pinned {deployment.name} is not up: {seen.error.message}")

    def _models_listed(self, specs: tuple[Any, ...]) -> None:
        """Stored models are deployments too, made of the defaults; names that are taken keep their owner (R-91)."""
        state = self.state
        listed = {spec.name for spec in specs}
        self.orders.drop_implicit(listed.__contains__)
        for spec in specs:
            if spec.name in state.deployments or spec.name in state.names:
                continue
            free = tuple(alias for alias in spec.aliases if alias not in state.names)
            deployment = Deployment(_with_aliases(spec, free), created_at=state.now, created_wall=state.wall)
            state.deployments[spec.name] = deployment
            for name in (spec.name, *free):
                state.names[name] = spec.name

    # -- start and end of the daemon -------------------------------------------------------------------------------

    def _leftover_found(self, seen: inputs.LeftoverFound) -> None:
        """A row that is not gone is a resident with its recorded reservation, before admission opens (S-90, S-94).

        One that was given up by force is chased on, but holds nothing: its bytes have been promised to others.
        """
        state, row, unit = self.state, seen.life.session, seen.life.unit
        generation = row.generation
        is_given_up = any(act.verb == "force-release" for act in seen.life.acts)
        reservation = {} if is_given_up else {PoolId(pool): amount for pool, amount in row.reservation.items()}
        state.ledger = state.ledger.adopt(generation, reservation)
        step = lifecycle.leftover(
            generation=generation,
            deployment=row.deployment,  # type: ignore[arg-type]
            replica=row.replica,
            reservation=reservation,
            unit_kind=row.unit_kind,
            unit_id=unit_name(state.scope, generation),
            now=state.now,
        )
        session = Session(step.state, model=row.model, engine=row.engine, installation=row.installation)
        session.unit, session.load_key = unit, row.load_key
        state.sessions[generation] = session
        deployment = deployment_of(state, session)
        if deployment is not None:
            deployment.replica(row.replica).generation = generation
        self.machine.send(
            Spawn(
                Assignment(
                    generation, session.state.deployment, row.replica, session.state.reservation, row.load_key,
                    leftover=unit, life_dir=row.life_dir,
                )
            )
        )  # fmt: skip
        self.machine.enter(session, step)

    def _leftover_judged(self, seen: inputs.LeftoverJudged) -> None:
        session = self.state.sessions.get(seen.generation)
        if session is None:
            return
        words = {"reap": "unit.reaped", "forget": "unit.forgotten", "adopt": "unit.adopted"}
        self.machine.announce_session(
            session,
            words.get(seen.action, "unit.reported"),
            {
                "unit_id": f"stoker-{self.state.scope}-{seen.generation}", "rule": seen.rule, "found": seen.found,
                "detail": seen.detail, "bytes": sum(session.state.reservation.values()),
            },
        )  # fmt: skip
        if seen.action in {"reap", "forget"}:
            self.machine.feed(session, RetryStop(seen.generation))

    def _holds_read(self, seen: inputs.HoldsRead) -> None:
        """Holds survive a restart of the daemon (S-113)."""
        for hold in seen.holds:
            deployment = self.state.deployments.get(hold.deployment)  # type: ignore[call-overload]
            if deployment is None:
                continue
            until = math.inf if hold.until is None else self.state.now + max(0.0, hold.until - seen.wall)
            deployment.replica(hold.replica).restart = RestartState(
                failures=(self.state.now,) * hold.failures, held_until=until, held_since=self.state.now,
                hold_s=hold.trial_s, code=hold.code, message=hold.message,
            )  # fmt: skip

    def _begin_shutdown(self, order: inputs.BeginShutdown) -> None:
        """S-18, steps 1 to 3: nothing new, waiting ones fail, all lives drain and stop in parallel."""
        state = self.state
        first = state.phase != "stopping"
        state.phase = "stopping"
        if first:
            self.machine.announce("daemon.stop-begun", reason="shutdown", deadline_ms=round(order.drain_s * 1000))
        for deployment in state.deployments.values():
            self.intake.refuse_waiting(deployment, shutting_down())
            for want in list(deployment.wants):
                deployment.wants.remove(want)
                self.orders.on_want_failed(want, shutting_down())
        for session in list(state.sessions.values()):
            if session.phase in LOADING:
                self.machine.feed(session, Cancel(session.generation, Reason.SHUTDOWN, by="shutdown"))
            elif session.phase in {Phase.READY, Phase.DRAINING}:
                mode = "now" if order.skip_drain else "drain"
                stop = Stop(session.generation, Reason.SHUTDOWN, mode=mode, drain_s=order.drain_s)
                self.machine.feed(session, stop)

    def _set_budget(self, order: inputs.SetBudget) -> None:
        """Live, and it never evicts (M-33)."""
        state = self.state
        if order.pool not in state.ledger.budgets:
            raise error_for(
                ErrorCode.POOL_NOT_FOUND, f"There is no pool {order.pool!r}.", remedy="See `stoker status`."
            )
        total = state.hardware.pools[order.pool].total_bytes
        if order.budget_bytes is not None and not 0 <= order.budget_bytes <= total:
            raise error_for(
                ErrorCode.INVALID_PARAMETER,
                f"budget_bytes is {order.budget_bytes}; pool {order.pool} allows 0 to {total}.",
                param="budget_bytes",
            )
        budget = state.automatic_budgets[order.pool] if order.budget_bytes is None else order.budget_bytes
        state.ledger = state.ledger.with_budget(order.pool, budget)
        state.budget_origins[order.pool] = "auto" if order.budget_bytes is None else order.origin
        state.stale_plan = True

    def _cancel_ticket(self, name: str) -> Ticket:
        for ticket in self.state.waiting.values():
            if name in {ticket.ticket_id, ticket.ask.request_id}:
                error = error_for(ErrorCode.REQUEST_CANCELLED, "The request was cancelled by an operator.")
                self.intake.cancel(ticket, error)
                return ticket
        for session in self.state.sessions.values():
            for ticket in session.grants.values():
                if name in {ticket.ticket_id, ticket.ask.request_id}:
                    ticket.error = error_for(ErrorCode.REQUEST_CANCELLED, "The request was cancelled by an operator.")
                    ticket.wake(ticket)
                    return ticket
        raise error_for(ErrorCode.TICKET_NOT_FOUND, f"There is no ticket or request {name!r}.")


def _with_aliases(spec: Any, aliases: tuple[str, ...]) -> Any:
    return replace(spec, aliases=aliases)
