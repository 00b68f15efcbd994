"""What operators ask for: loads, unloads, stops, settings, and the operations that report on them (C-6 to C-9, S-12).

Every order is one kernel step and answers what was decided. An order that does not fit is refused with the phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stoker.domain.deployments import DeploymentSpec
from stoker.domain.lifecycle import Outcome
from stoker.domain.restart import lifted
from stoker.domain.session import Cancel, ForceRelease, Phase, Reason, Stop
from stoker.errors import ErrorCode, StokerError, error_for
from stoker.ids import DeploymentName, Generation, OperationId
from stoker.ports.journal import OperationRow
from stoker.runtime.changes import settings_restart, spec_changes
from stoker.runtime.inputs import (
    CancelOperation,
    DeleteDeployment,
    ForceReleaseSession,
    LoadDeployment,
    PinDeployment,
    PutDeployment,
    ReleaseHold,
    ScaleDeployment,
    StopSession,
    UnloadDeployment,
)
from stoker.runtime.intake import Intake, deployment_removed, shutting_down
from stoker.runtime.machine import Machine, not_legal
from stoker.runtime.outbox import Resolve, WriteHold, WriteOperation
from stoker.runtime.room import unconfirmed
from stoker.runtime.state import LIVE, LOADING, Deployment, Operation, Session, Want

_KEPT_OPERATIONS = 1000


class Orders:
    def __init__(self, machine: Machine, intake: Intake) -> None:
        self._machine = machine
        self._state = machine.state
        self._intake = intake
        self._made = 0

    # -- lookups ---------------------------------------------------------------------------------------------------

    def deployment(self, name: str) -> Deployment:
        """The deployment a name means: its own, or an alias."""
        known = self._state.names.get(name)
        if known is None:
            raise error_for(
                ErrorCode.DEPLOYMENT_NOT_FOUND, f"There is no deployment named {name!r}.", remedy="See `stoker list`."
            )
        return self._state.deployments[known]

    def session(self, generation: Generation) -> Session:
        session = self._state.sessions.get(generation)
        if session is None:
            raise error_for(
                ErrorCode.SESSION_NOT_FOUND, f"There is no session {generation}.", remedy="See `stoker ps --all`."
            )
        return session

    # -- operations ------------------------------------------------------------------------------------------------

    def _open(self, kind: str, subject: str, by: str) -> Operation:
        state = self._state
        self._made += 1
        operation = Operation(
            OperationId(f"op_{state.instance}_{self._made}"), kind, subject, by, created_wall=state.wall,
            started_wall=state.wall, state="running",
        )  # fmt: skip
        state.operations[operation.operation_id] = operation
        self._forget_old()
        self._write(operation, "operation.created")
        return operation

    def restore(self, rows: tuple[OperationRow, ...]) -> None:
        """Operations of earlier runs are shown; those that were under way have failed with ``interrupted`` (C-9)."""
        for row in sorted(rows, key=lambda row: row.created):
            body, error = row.body, row.body.get("error")
            operation = Operation(
                OperationId(row.operation_id), row.kind, row.subject, str(body.get("requested_by", "")),
                created_wall=row.created, state=row.state, started_wall=body.get("started_at"), ended_wall=row.ended,
                error=_error_of(error) if error else None, result=dict(body.get("result") or {}),
                revision=int(body.get("revision", 1)),
            )  # fmt: skip
            self._state.operations[operation.operation_id] = operation
            if not operation.is_over:
                sentence = f"The daemon ended while {row.kind} of {row.subject} was under way."
                self.finish(operation, error=error_for(ErrorCode.INTERRUPTED, sentence, remedy="Ask for it again."))
        self._forget_old()

    def _write(self, operation: Operation, event: str) -> None:
        operation.revision += event != "operation.progressed"
        body = operation_fields(operation)
        self._machine.announce(event, **body)
        if event != "operation.progressed":
            row = OperationRow(
                operation.operation_id, operation.kind, operation.subject, operation.state, body,
                operation.created_wall, operation.ended_wall,
            )  # fmt: skip
            self._machine.send(WriteOperation(row, operation.is_over))

    def _forget_old(self) -> None:
        over = [op.operation_id for op in self._state.operations.values() if op.is_over]
        for operation_id in over[: max(0, len(self._state.operations) - _KEPT_OPERATIONS)]:
            del self._state.operations[operation_id]

    def finish(self, operation: Operation, *, error: StokerError | None = None, cancelled: bool = False) -> None:
        """End an operation once; later ends change nothing."""
        if operation.is_over:
            return
        operation.state = "cancelled" if cancelled else "failed" if error is not None else "succeeded"
        operation.error = error
        operation.ended_wall = self._state.wall
        operation.stage = None
        self._write(operation, "operation.finished")

    def finish_all(self, session: Session, kinds: frozenset[str], error: StokerError | None = None, **how: Any) -> None:
        """A life told its end: operations of ``kinds`` that wait for it may be over."""
        for operation_id in list(session.operations):
            operation = self._state.operations.get(operation_id)
            if operation is None or operation.kind not in kinds:
                continue
            operation.pending.discard(session.generation)
            if error is not None or how or not operation.pending:
                self.finish(operation, error=error, **how)
                session.operations.remove(operation_id)

    def progress(self, session: Session) -> None:
        """A load moved on: its operations show the stage (C-8)."""
        for operation_id in session.operations:
            operation = self._state.operations.get(operation_id)
            if operation is not None and operation.kind == "load" and not operation.is_over:
                operation.stage, operation.percent = session.state.stage, session.state.percent
                self._write(operation, "operation.progressed")

    # -- load and unload -------------------------------------------------------------------------------------------

    def load(self, order: LoadDeployment) -> Operation:
        """An explicit load: joins what is under way, is done at once if it is up, and lifts a hold (S-12, S-113)."""
        if self._state.phase == "stopping":
            raise shutting_down()
        deployment = self._state.deployments[order.name]
        if deployment.removing is not None:
            raise deployment_removed(deployment)
        if order.load_timeout_s is not None and not 0 < order.load_timeout_s < math.inf:
            raise error_for(
                ErrorCode.INVALID_PARAMETER, f"load_timeout_s is {order.load_timeout_s}; it must be above 0.",
                param="load_timeout_s",
            )  # fmt: skip
        if order.settings:
            self.put(PutDeployment(replace(deployment.spec, settings={**deployment.spec.settings, **order.settings})))
        operation = self._open("load", deployment.name, order.by)
        deployment.stopped_by_operator = False
        for index in {order.replica or 0, *deployment.replicas}:
            if order.replica in {None, index}:
                self.lift(deployment, index, by="load")
        until = self._state.now + self._machine.limits.claim_wait_s
        want = Want(
            self._state.now, order.replica, operation.operation_id, until, order.load_timeout_s, bool(order.settings)
        )
        deployment.wants.append(want)
        self.meet_wants(deployment)
        self._state.alarms.at(until)
        self._state.stale_plan = True
        return operation

    def meet_wants(self, deployment: Deployment) -> None:
        """Explicit loads that a life fulfils already: ready ones are over, those under way are joined (S-12).

        A life that is closed for another deployment's sake fulfils none, nor does one whose settings are changing.
        """
        if deployment.changing:
            return
        open_ones = [s for s in self._state.of(deployment) if s.phase in LIVE and s.earmarked_for is None]
        for want in list(deployment.wants):
            fitting = [s for s in open_ones if want.replica in {None, s.state.replica}]
            if not fitting:
                continue
            deployment.wants.remove(want)
            session = min(fitting, key=lambda s: s.phase is not Phase.READY)
            operation = self._state.operations.get(want.operation) if want.operation is not None else None
            if operation is None:
                continue
            was = "ready" if session.phase is Phase.READY else "loading"
            operation.result = {"generation": session.generation, "was": was}
            if session.phase is Phase.READY:
                self.finish(operation)
            else:
                session.operations.append(operation.operation_id)
                operation.asked_settings = want.asked_settings

    def move_on(self, session: Session) -> None:
        """Whoever only wants the model moves to the next load; who asked for the old settings is told so (S-12)."""
        state, name = self._state, session.state.deployment
        deployment = state.deployments.get(name)
        error = error_for(ErrorCode.LOAD_SUPERSEDED, f"The load of {name} gave way to one with other settings.")
        for operation_id in [o for o in session.operations if state.operations[o].kind == "load"]:
            session.operations.remove(operation_id)
            operation = state.operations[operation_id]
            if operation.asked_settings or deployment is None or session.state.replica >= deployment.spec.replicas:
                self.finish(operation, error=error)
            else:
                until = state.now + self._machine.limits.claim_wait_s
                deployment.wants.append(Want(state.now, session.state.replica, operation_id, until))
                state.alarms.at(until)

    def expire_wants(self) -> None:
        """An explicit load that found no room within its bound fails and says what it waited for (S-5)."""
        for deployment in self._state.deployments.values():
            for want in [want for want in deployment.wants if want.until <= self._state.now]:
                deployment.wants.remove(want)
                waited_s = self._state.now - want.since
                self.on_want_failed(
                    want,
                    error_for(
                        ErrorCode.ROOM_DENIED,
                        f"{deployment.name} found no room within {waited_s:.0f} s; it waited for: "
                        f"{deployment.blocked_on or 'memory'}.",
                        remedy="Unload something, or raise sessions.claim_wait_s.",
                        retry_after_s=30,
                    ),
                )

    def on_want_failed(self, want: Want, error: StokerError) -> None:
        operation = self._state.operations.get(want.operation) if want.operation is not None else None
        if operation is not None:
            self.finish(operation, error=error)

    def unload(self, order: UnloadDeployment) -> Operation:
        deployment = self._state.deployments[order.name]
        sessions = [s for s in self._state.of(deployment) if order.replica in {None, s.state.replica}]
        busy = [s for s in sessions if s.in_flight]
        if order.mode == "idle-only" and busy:
            raise error_for(
                ErrorCode.SESSION_BUSY,
                f"{deployment.name} has {sum(s.in_flight for s in busy)} requests running; nothing was unloaded.",
                remedy="Wait, or use --drain or --now.",
                details={"generations": [s.generation for s in busy]},
            )
        operation = self._open("unload", deployment.name, order.by)
        deployment.stopped_by_operator = True
        for want in list(deployment.wants):
            deployment.wants.remove(want)
            self.on_want_failed(want, _cancelled_by_unload(deployment))
        self._end(operation, sessions, order.mode, order.drain_s)
        return operation

    def stop(self, order: StopSession) -> Operation:
        session = self.session(order.generation)
        operation = self._open("stop", str(order.generation), order.by)
        deployment = self._state.deployments.get(session.state.deployment)
        if deployment is not None:
            deployment.stopped_by_operator = True
        self._end(operation, [session], order.mode, order.drain_s)
        return operation

    def _end(self, operation: Operation, sessions: list[Session], mode: str, drain_s: float | None) -> None:
        """Stop ``sessions``; the operation is over when each is confirmed gone."""
        operation.result = {"generations": [session.generation for session in sessions]}
        if not sessions:
            self.finish(operation)
            return
        operation.pending = {session.generation for session in sessions}
        for session in sessions:
            session.operations.append(operation.operation_id)
        for session in sessions:
            stop = Stop(
                session.generation,
                Reason.OPERATOR,
                mode="now" if mode in {"now", "kill"} else "drain",
                drain_s=self._machine.limits.drain_operator_s if drain_s is None else drain_s,
                grace_s=0.0 if mode == "kill" else None,
            )
            step = self._machine.feed(session, stop)
            if step.outcome is Outcome.REFUSED:
                raise not_legal(step, session)

    def cancel(self, order: CancelOperation) -> Operation:
        """Cancel a load; one that is over, or cannot be cancelled any more, answers its state (C-9)."""
        operation = self._state.operations.get(order.operation_id)
        if operation is None:
            raise error_for(ErrorCode.OPERATION_NOT_FOUND, f"There is no operation {order.operation_id}.")
        if operation.is_over:
            return operation
        if operation.kind != "load":
            raise error_for(
                ErrorCode.NOT_LEGAL_NOW,
                f"Operation {operation.operation_id} ({operation.kind}) cannot be cancelled once it has begun.",
            )
        for deployment in self._state.deployments.values():
            for want in [want for want in deployment.wants if want.operation == operation.operation_id]:
                deployment.wants.remove(want)
                self.finish(operation, cancelled=True, error=_load_cancelled(deployment.name))
                self._state.stale_plan = True
                return operation
        for session in list(self._state.sessions.values()):
            if operation.operation_id in session.operations and session.phase in LOADING:
                self._machine.feed(session, Cancel(session.generation, Reason.CANCELLED, by="operator"))
        return operation

    def force_release(self, order: ForceReleaseSession) -> Session:
        session = self.session(order.generation)
        step = self._machine.feed(session, ForceRelease(order.generation, order.by))
        if step.outcome is Outcome.REFUSED:
            raise not_legal(step, session)
        return session

    # -- holds -----------------------------------------------------------------------------------------------------

    def lift(self, deployment: Deployment, index: int, *, by: str) -> None:
        """Forgive a replica; a hold that stood is taken out of the journal too."""
        replica = deployment.replica(index)
        was_held = replica.restart.held_since is not None
        replica.restart = lifted(replica.restart)
        self._state.stale_plan = True
        if was_held:
            self._machine.send(WriteHold(deployment.name, index, None))
            self._machine.announce("replica.released", deployment=deployment.name, replica=index, by=by)

    def release_hold(self, order: ReleaseHold) -> Deployment:
        deployment = self._state.deployments[order.name]
        for index in list(deployment.replicas):
            if order.replica in {None, index}:
                self.lift(deployment, index, by="operator")
        return deployment

    # -- desired state ---------------------------------------------------------------------------------------------

    def pin(self, order: PinDeployment) -> Deployment:
        deployment = self._state.deployments[order.name]
        self.put(PutDeployment(replace(deployment.spec, pinned=order.pinned)))
        deployment.stopped_by_operator = False
        self._state.stale_plan = True
        return deployment

    def scale(self, order: ScaleDeployment) -> Deployment:
        """Surplus replicas go from the highest index, busy ones drained without cutting (M-94)."""
        deployment = self._state.deployments[order.name]
        self.put(PutDeployment(replace(deployment.spec, replicas=order.replicas)))
        return deployment

    def put(self, order: PutDeployment) -> dict[str, Any]:
        """Create or change a deployment: ``{deployment, created, changes, restarts}``; a dry run changes nothing."""
        state, spec = self._state, order.spec
        deployment = state.deployments.get(spec.name)
        if deployment is not None and deployment.removing is not None:
            raise deployment_removed(deployment)
        self._check_names(spec)
        changes = spec_changes(
            deployment.spec if deployment else None, spec, settings_restart=settings_restart(deployment, spec)
        )
        needs_restart = deployment is not None and any(change["effect"] == "D" for change in changes)
        restarts = (
            [s.generation for s in state.of(deployment) if s.phase in LIVE] if deployment and needs_restart else []
        )
        answer = {"created": deployment is None, "changes": changes, "restarts": restarts}
        if order.dry_run:
            return answer
        if deployment is None:
            deployment = Deployment(spec, created_at=state.now, created_wall=state.wall)
            state.deployments[spec.name] = deployment
            self._machine.announce(
                "deployment.created", deployment=spec.name, revision=1, origin=spec.origin, changes=changes, restarts=[]
            )
        elif changes:
            deployment.revision += 1
            self._adopt(deployment, spec, loads_anew=needs_restart)
            self._machine.announce(
                "deployment.changed", deployment=spec.name, revision=deployment.revision, origin=spec.origin,
                changes=changes, restarts=restarts,
            )  # fmt: skip
        deployment.spec = spec
        self._name(deployment)
        state.stale_plan = True
        return answer

    def _adopt(self, deployment: Deployment, spec: DeploymentSpec, *, loads_anew: bool) -> None:
        """Changed keys reach running lives at once; changed settings once they are known to be right (S-12, S-13).

        ``loads_anew``: the load key changes, which also gives a replica without a life its starts back (S-113).
        """
        sessions = self._state.of(deployment)
        has_other_settings = loads_anew or spec.settings != deployment.spec.settings
        deployment.spec = spec
        deployment.prospect_fresh = False
        if has_other_settings and any(session.phase in LIVE for session in sessions):
            self.prove(deployment)
        elif loads_anew:
            deployment.prospect = None
            for index in deployment.replicas:
                self.lift(deployment, index, by="settings")
        for session in sessions:
            session.keep_alive_s, session.pinned = spec.keep_alive_s, spec.pinned
            if session.phase is Phase.READY and session.accepted is not None:
                session.width = spec.max_in_flight or session.accepted.width
            if session.state.replica >= max(1, spec.replicas):
                if session.phase in LOADING:
                    self._machine.feed(session, Cancel(session.generation, Reason.SUPERSEDED, by="superseded"))
                elif session.phase is Phase.READY:
                    drain_s = self._machine.limits.drain_change_s
                    self._machine.feed(session, Stop(session.generation, Reason.SCALED_IN, drain_s=drain_s))
            self._intake.arm_idle(session)
        self._intake.grant_waiting(deployment)

    def prove(self, deployment: Deployment) -> None:
        """Resolve changed settings beside what runs; until that is done no load is met by it."""
        deployment.changing = True
        if not deployment.resolving:
            deployment.resolving = True
            self._machine.send(Resolve(deployment.spec))

    def _check_names(self, spec: DeploymentSpec) -> None:
        for name in (spec.name, *spec.aliases):
            owner = self._state.names.get(name)
            if owner is not None and owner != spec.name:
                raise error_for(
                    ErrorCode.INVALID_NAME,
                    f"{name!r} already names the deployment {owner!r}.",
                    remedy="Choose another name or alias.",
                    param="aliases",
                )

    def _name(self, deployment: Deployment) -> None:
        names = self._state.names
        for name in [name for name, owner in names.items() if owner == deployment.name]:
            del names[name]
        for name in (deployment.name, *deployment.spec.aliases):
            names[name] = deployment.name

    def delete(self, order: DeleteDeployment) -> Operation:
        """Drain, then remove (C-6)."""
        deployment = self._state.deployments[order.name]
        if deployment.spec.origin == "file":
            raise error_for(
                ErrorCode.DEPLOYMENT_FROM_FILE,
                f"{deployment.name} stands in a configuration file.",
                remedy="Remove it there.",
            )
        operation = self._open("remove", deployment.name, order.by)
        deployment.removing = operation.operation_id
        self._intake.refuse_waiting(deployment, deployment_removed(deployment))
        for want in list(deployment.wants):
            deployment.wants.remove(want)
            self.on_want_failed(want, deployment_removed(deployment))
        sessions = self._state.of(deployment)
        operation.pending = {session.generation for session in sessions}
        for session in sessions:
            session.operations.append(operation.operation_id)
            stop = Stop(session.generation, Reason.MODEL_REMOVED, drain_s=self._machine.limits.drain_operator_s)
            self._machine.feed(session, stop)
        self.remove_if_empty(deployment)
        return operation

    def remove_if_empty(self, deployment: Deployment) -> None:
        if deployment.removing is None or self._state.of(deployment):
            return
        state = self._state
        del state.deployments[deployment.name]
        state.meters.forget(deployment.name)
        for name in [name for name, owner in state.names.items() if owner == deployment.name]:
            del state.names[name]
        self._machine.announce(
            "deployment.removed", deployment=deployment.name, revision=deployment.revision,
            origin=deployment.spec.origin, changes=[], restarts=[],
        )  # fmt: skip
        operation = state.operations.get(deployment.removing)
        if operation is not None:
            self.finish(operation)

    def drop_implicit(self, keep: Callable[[DeploymentName], bool]) -> None:
        """Implicit deployments whose model is gone and that nothing uses leave the list."""
        for deployment in list(self._state.deployments.values()):
            unused = not self._state.of(deployment) and not deployment.queue and not deployment.wants
            if deployment.spec.origin == "implicit" and unused and not keep(deployment.name):
                del self._state.deployments[deployment.name]
                for name in [name for name, owner in self._state.names.items() if owner == deployment.name]:
                    del self._state.names[name]

    # -- what lives tell -------------------------------------------------------------------------------------------

    def on_stop_unconfirmed(self, session: Session) -> None:
        self.finish_all(session, frozenset({"unload", "stop", "remove"}), unconfirmed(session))


def operation_fields(operation: Operation) -> dict[str, Any]:
    """C-8, as event fields and journal body."""
    error = operation.error
    return {
        "operation_id": operation.operation_id,
        "kind": operation.kind,
        "subject": operation.subject,
        "state": operation.state,
        "stage": operation.stage,
        "progress": None if operation.percent is None else {"done": operation.percent, "total": 100, "unit": "percent"},
        "cancellable": operation.kind == "load" and not operation.is_over,
        "requested_by": operation.requested_by,
        "created_at": operation.created_wall,
        "started_at": operation.started_wall,
        "ended_at": operation.ended_wall,
        "error": None if error is None else problem(error),
        "result": dict(operation.result),
        "revision": operation.revision,
    }


def problem(error: StokerError) -> dict[str, Any]:
    """A Problem object (C-11) without the request's own members."""
    return {
        "type": f"errors#{error.code}",
        "status": error.row.http_status,
        "code": str(error.code),
        "message": error.message,
        "remedy": error.remedy,
        "details": error.details,
        "retry_after_s": error.retry_after_s,
    }


def _error_of(told: Mapping[str, Any]) -> StokerError:
    """The error a Problem object was made of; one of an unknown code is a plain internal one."""
    try:
        code = ErrorCode(told["code"])
    except ValueError:
        code = ErrorCode.INTERNAL
    return error_for(
        code, str(told.get("message", "")), remedy=str(told.get("remedy", "")), details=told.get("details") or {},
        retry_after_s=told.get("retry_after_s"),
    )  # fmt: skip


def _load_cancelled(name: str) -> StokerError:
    return error_for(ErrorCode.LOAD_CANCELLED, f"The load of {name} was cancelled.")


def _cancelled_by_unload(deployment: Deployment) -> StokerError:
    return error_for(ErrorCode.LOAD_CANCELLED, f"The load of {deployment.name} was cancelled by an unload.")
