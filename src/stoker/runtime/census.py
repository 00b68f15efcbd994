"""What lists, shows and metrics say: frozen views made from the kernel's state in one step (C-5, C-7).

Reading builds, starts, evicts and touches nothing, and asks neither an engine nor a device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from stoker.domain.deployments import DeploymentSpec
from stoker.domain.restart import Held, may_start
from stoker.domain.session import Phase
from stoker.ids import PoolId
from stoker.observability.scrub import SET, Scrubber
from stoker.runtime.machine import failure_error
from stoker.runtime.orders import operation_fields, problem
from stoker.runtime.state import LOADING, Deployment, KernelState, Operation, Session
from stoker.runtime.tickets import Ticket
from stoker.runtime.views import (
    DeploymentView,
    OperationView,
    PoolView,
    SessionView,
    Snapshot,
    StatusView,
    TicketView,
)  # fmt: skip


class Census:
    """Views of one kernel state. ``addresses`` are filled in by the daemon as its listeners open."""

    def __init__(self, state: KernelState) -> None:
        self._state = state
        self.addresses: dict[str, str] = {}
        self.config: dict[str, Any] = {"revision": 1}

    def _wall_of(self, loop_time: float | None) -> float | None:
        """Loop time as wall time, for views; None stays None, never a made-up number."""
        if loop_time is None or math.isinf(loop_time):
            return None
        return self._state.wall + (loop_time - self._state.now)

    # -- whole -----------------------------------------------------------------------------------------------------

    def snapshot(self, last_event_id: str) -> Snapshot:
        return Snapshot(
            at=self._state.wall,
            last_event_id=last_event_id,
            status=self.status(),
            deployments=self.deployments(),
            sessions=self.sessions(),
            queue=self.queue(),
            pools=self.pools(),
            operations=self.operations(),
        )

    def status(self) -> StatusView:
        state = self._state
        in_flight = sum(session.in_flight for session in state.sessions.values())
        return StatusView(
            instance=state.instance,
            version=state.version,
            scope=state.scope,
            state=state.phase,
            started_at=state.started_wall,
            addresses=dict(self.addresses),
            open=in_flight + len(state.waiting),
            waiting=len(state.waiting),
            in_flight=in_flight,
            sessions=dict(Counter(str(session.phase) for session in state.sessions.values())),
            pools=self.pools(),
            config=dict(self.config),
            warnings=tuple(state.warnings[-20:]),
        )

    # -- deployments -----------------------------------------------------------------------------------------------

    def deployments(self) -> tuple[DeploymentView, ...]:
        return tuple(self.deployment(deployment) for deployment in self._state.deployments.values())

    def deployment(self, deployment: Deployment) -> DeploymentView:
        sessions = self._state.of(deployment)
        prospect = deployment.prospect
        plan = next((session.plan for session in sessions if session.plan is not None), None)
        width = sum(session.width for session in sessions if session.phase is Phase.READY)
        return DeploymentView(
            name=deployment.name,
            names=(deployment.name, *deployment.spec.aliases),
            spec=spec_fields(deployment.spec),
            origin=deployment.spec.origin,
            revision=deployment.revision,
            state=self._word(deployment, sessions),
            sessions=tuple(session.generation for session in sessions),
            places=width or deployment.spec.max_in_flight or deployment.spec.slots or 1,
            in_flight=deployment.in_flight,
            waiting=len(deployment.queue),
            estimate=_by_pool(plan.footprint.charge) if plan is not None else {},
            hold=self._hold(deployment),
            last_error=self._last_error(deployment),
            model=prospect.model.reference if prospect else None,
            engine=prospect.adapter.id if prospect else deployment.spec.engine,
            size_bytes=prospect.model.facts.total_bytes if prospect else None,
            context_tokens=plan.context_tokens if plan else None,
            last_used=deployment.last_used_wall,
            created=int(deployment.created_wall),
        )

    def _word(self, deployment: Deployment, sessions: list[Session]) -> str:
        phases = {session.phase for session in sessions}
        if deployment.removing is not None:
            return "removing"
        if Phase.READY in phases:
            ready = [s for s in sessions if s.phase is Phase.READY]
            return "earmarked" if all(s.earmarked_for is not None for s in ready) else "ready"
        if phases & LOADING:
            return "loading"
        if phases & {Phase.DRAINING, Phase.STOPPING, Phase.STOP_UNCONFIRMED}:
            return "draining"
        return "held" if self._hold(deployment) is not None else "cold"

    def _hold(self, deployment: Deployment) -> Mapping[str, Any] | None:
        for replica in deployment.replicas.values():
            standing = may_start(replica.restart, self._state.now)
            if isinstance(standing, Held):
                return {
                    "replica": replica.index, "cause": "crash-loop", "code": standing.code,
                    "message": standing.message, "failures": standing.failures, "until": self._wall_of(standing.until),
                }  # fmt: skip
        return None

    @staticmethod
    def _last_error(deployment: Deployment) -> Mapping[str, Any] | None:
        if deployment.problem is not None:
            return problem(deployment.problem)
        failures = [r.last_failure for r in deployment.replicas.values() if r.last_failure is not None]
        return problem(failure_error(failures[-1], deployment.name)) if failures else None

    # -- sessions --------------------------------------------------------------------------------------------------

    def sessions(self) -> tuple[SessionView, ...]:
        return tuple(self.session(session) for _, session in sorted(self._state.sessions.items()))

    def session(self, session: Session) -> SessionView:
        state, accepted = session.state, session.accepted
        unconfirmed = None
        if state.phase is Phase.STOP_UNCONFIRMED:
            retry_at = self._state.timers.get((state.generation, "retry-stop"))
            unconfirmed = {
                "cause": state.unconfirmed_cause, "attempts": state.stop_attempts,
                "next_retry": self._wall_of(retry_at),
                "survivors": [{"pid": s.pid, "name": s.name, "bytes": s.bytes} for s in state.survivors],
            }  # fmt: skip
        return SessionView(
            generation=state.generation,
            deployment=state.deployment,
            replica=state.replica,
            phase=str(state.phase),
            reason=str(state.reason) if state.reason is not None else None,
            also=tuple(str(reason) for reason in state.also),
            since=self._wall_of(state.since) or 0.0,
            engine=session.engine,
            installation=session.installation,
            unit={"kind": state.unit_kind, "id": f"stoker-{self._state.scope}-{state.generation}"},
            reservation=_by_pool(state.reservation),
            measured=_by_pool(session.measured),
            slots=session.plan.slots if session.plan else None,
            width=session.width if accepted else None,
            in_flight=session.in_flight,
            earmarked_for=session.earmarked_for,
            liveness=str(state.liveness),
            context_tokens=session.plan.context_tokens if session.plan else None,
            capabilities=_capabilities(session),
            startup=self._startup(session),
            last_used=session.last_used_wall,
            idle_deadline=self._wall_of(session.idle_at) if state.phase is Phase.READY else None,
            pinned=session.pinned,
            upstream_auth=session.upstream_auth,
            hardening_missing=state.hardening_missing,
            exit=_exit(session),
            launch={"argv_shown": list(session.launch_shown), "env_names": list(session.env_names)},
            confirmed_by=state.confirmed_by,
            unconfirmed=unconfirmed,
        )

    def _startup(self, session: Session) -> Mapping[str, Any] | None:
        if session.phase not in LOADING:
            return None
        elapsed_s = self._state.now - session.state.started_at
        return {
            "stage": session.state.stage,
            "percent": session.state.percent,
            "elapsed_ms": round(elapsed_s * 1000),
            "deadline_ms": session.startup.get("deadline_ms"),
        }

    # -- the rest --------------------------------------------------------------------------------------------------

    def pools(self) -> tuple[PoolView, ...]:
        state = self._state
        views = []
        for pool_id, budget in state.ledger.budgets.items():
            pool = state.hardware.pools[pool_id]
            holders = [s for s in state.sessions.values() if s.state.reservation.get(pool_id)]
            measured = [s.measured[pool_id] for s in holders if pool_id in s.measured]
            own = sum(measured) if measured else 0
            reserved = state.ledger.reserved(pool_id)
            views.append(
                PoolView(
                    pool_id=pool_id,
                    kind=str(pool.kind),
                    device=pool.name or None,
                    capacity_bytes=pool.total_bytes,
                    budget_bytes=budget,
                    budget_origin=state.budget_origins.get(pool_id, "auto"),
                    reserved_bytes=reserved,
                    headroom_bytes=budget - reserved,
                    measured_bytes=own,
                    outside_bytes=max(0, pool.used_bytes - own),
                    overdraft_bytes=state.ledger.overdraft(pool_id),
                    unconfirmed_bytes=sum(
                        s.state.reservation[pool_id] for s in holders if s.phase is Phase.STOP_UNCONFIRMED
                    ),
                    reservations=tuple(
                        {"generation": s.generation, "bytes": s.state.reservation[pool_id]} for s in holders
                    ),
                )
            )
        return tuple(views)

    def queue(self) -> tuple[TicketView, ...]:
        return tuple(self.ticket(ticket) for ticket in self._state.waiting.values())

    def ticket(self, ticket: Ticket) -> TicketView:
        state = self._state
        deployment = state.deployments[ticket.deployment]
        return TicketView(
            ticket_id=ticket.ticket_id,
            request_id=ticket.ask.request_id,
            deployment=ticket.deployment,
            state=str(ticket.state),
            position=deployment.queue.position(ticket.ticket_id),
            blocked_by=self._state.blocked_by(deployment),
            queued_at=self._wall_of(ticket.queued_at) or 0.0,
            deadline=self._wall_of(deployment.queue.next_deadline()) or 0.0,
            waited_ms=round((state.now - ticket.queued_at) * 1000),
        )

    def operations(self) -> tuple[OperationView, ...]:
        return tuple(self.operation(operation) for operation in self._state.operations.values())

    @staticmethod
    def operation(operation: Operation) -> OperationView:
        return OperationView(**operation_fields(operation))


def spec_fields(spec: DeploymentSpec) -> dict[str, Any]:
    """A deployment's keys as JSON; values of variables may be secrets and show as set (C-46)."""
    shown: dict[str, Any] = {}
    for name in DeploymentSpec.__dataclass_fields__:
        value = getattr(spec, name)
        if name == "env":
            value = dict.fromkeys(value, SET)
        elif name == "engine_args":
            value = list(Scrubber().argv(value))
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        shown[name] = value
    return shown


def _by_pool(amounts: Mapping[PoolId, int]) -> dict[str, int]:
    return {str(pool): amount for pool, amount in amounts.items()}


def _capabilities(session: Session) -> tuple[str, ...]:
    if session.accepted is None:
        return ()
    flags = session.accepted.capabilities.flags
    return tuple(sorted(name for name, answer in flags.items() if answer == "yes"))


def _exit(session: Session) -> Mapping[str, Any] | None:
    ended = session.state.exit
    if ended is None:
        return None
    return {"code": ended.code, "signal": ended.signal, "oom_killed": ended.oom_killed, "by": ended.by}
