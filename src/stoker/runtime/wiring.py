"""The one object that the surfaces are given, and how its parts are put together.

`Runtime` implements `stoker.runtime.uses.Uses`: each method is one kernel call or one frozen view. It holds no state
of its own and decides nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import anyio

from stoker.domain.deployments import DeploymentSpec
from stoker.errors import ErrorCode, error_for
from stoker.ids import DeploymentName, Generation, OperationId, PoolId, TicketId
from stoker.observability.metrics import render
from stoker.ports.engines import Installation
from stoker.ports.journal import Attempt, Journal
from stoker.ports.models import Models
from stoker.ports.units import LogLine, Units
from stoker.runtime import inputs
from stoker.runtime.bus import Bus
from stoker.runtime.census import Census
from stoker.runtime.effects import Carrier
from stoker.runtime.kernel import Kernel
from stoker.runtime.logbook import Logbook
from stoker.runtime.metering import freeze
from stoker.runtime.naming import near_names
from stoker.runtime.stalls import UNREADY_AFTER_S
from stoker.runtime.tickets import Ask, End, Ticket
from stoker.runtime.views import (
    DeploymentView,
    OperationView,
    PoolView,
    SessionView,
    Snapshot,
    StatusView,
    TicketView,
)  # fmt: skip

_LOOK_EVERY_S = 1.0


@dataclass(slots=True)
class Runtime:
    """A running Stoker, as gateway, control API and library see it."""

    kernel: Kernel
    carrier: Carrier
    census: Census
    bus: Bus
    journal: Journal
    models_here: Models
    units: Units
    logbook: Logbook
    installations: Callable[[], tuple[Installation, ...]]
    defaults: Callable[[str, str], DeploymentSpec]
    _looking: anyio.Lock = field(default_factory=anyio.Lock)
    _looked_at: float = float("-inf")

    # -- requests --------------------------------------------------------------------------------------------------

    def find(self, name: str) -> DeploymentName | None:
        return self.kernel.state.names.get(name)

    async def look_up(self, name: str) -> DeploymentName | None:
        found = self.find(name)
        if found is not None:
            return found
        async with self._looking:
            if self.carrier.now() - self._looked_at >= _LOOK_EVERY_S:
                await self.refresh_models()
        return self.find(name)

    async def refresh_models(self) -> None:
        """Stored models become deployments of the defaults; those whose file went away leave the list (R-91)."""
        listed = await self.carrier.threads(self.models_here.list)
        self._looked_at = self.carrier.now()
        specs = []
        for model in listed:
            first, *others = model.names
            specs.append(replace(self.defaults(first, model.reference), aliases=tuple(others)))
        self.carrier.post(inputs.ModelsListed(tuple(specs)))

    def near_names(self, name: str) -> tuple[str, ...]:
        return near_names(name, self.kernel.state.names)

    def ask(self, ask: Ask, wake: Callable[[Ticket], None]) -> Ticket:
        try:
            return self.kernel.ask(ask, wake, self.carrier.now())
        finally:
            self.carrier.carry()

    def leave(self, ticket: Ticket, end: End) -> None:
        self.kernel.leave(ticket, end, self.carrier.now())
        self.carrier.carry()

    def requeue(self, ticket: Ticket) -> None:
        self.carrier.post(inputs.Requeue(ticket))

    # -- views -----------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Requests are admitted, and no queue has been stuck for a minute (R-33)."""
        state, now = self.kernel.state, self.carrier.now()
        return state.phase == "ready" and not any(now - since >= UNREADY_AFTER_S for since in state.stalled.values())

    def status(self) -> StatusView:
        return self.census.status()

    def health(self) -> Mapping[str, Any]:
        state = self.kernel.state
        ready, stuck = self.is_ready(), ", ".join(state.stalled)
        checks = [
            {"name": "kernel", "ok": True, "since": state.started_wall, "detail": ""},
            {"name": "reconcile", "ok": state.phase != "starting", "since": state.started_wall, "detail": state.phase},
            {"name": "queues", "ok": not stuck, "since": state.started_wall, "detail": stuck},
        ]
        return {"live": True, "ready": ready, "checks": checks}

    def snapshot(self) -> Snapshot:
        return self.census.snapshot(self.bus.last_id)

    def deployments(self) -> tuple[DeploymentView, ...]:
        return self.census.deployments()

    def deployment(self, name: str) -> DeploymentView:
        return self.census.deployment(self.kernel.orders.deployment(name))

    def sessions(self) -> tuple[SessionView, ...]:
        return self.census.sessions()

    def session(self, generation: Generation) -> SessionView:
        return self.census.session(self.kernel.orders.session(generation))

    def pools(self) -> tuple[PoolView, ...]:
        return self.census.pools()

    def queue(self) -> tuple[TicketView, ...]:
        return self.census.queue()

    def operations(self) -> tuple[OperationView, ...]:
        return self.census.operations()

    def operation(self, operation_id: OperationId) -> OperationView:
        operation = self.kernel.state.operations.get(operation_id)
        if operation is None:
            raise error_for(ErrorCode.OPERATION_NOT_FOUND, f"There is no operation {operation_id}.")
        return self.census.operation(operation)

    def metrics(self) -> str:
        return render(freeze(self.kernel.state, self.census, self.bus))

    async def models(self) -> tuple[Mapping[str, Any], ...]:
        listed = await self.carrier.threads(self.models_here.list)
        return tuple(self._model(model) for model in listed)

    async def model(self, reference: str) -> Mapping[str, Any]:
        return self._model(await self.carrier.threads(self.models_here.resolve, reference))

    def _model(self, model: Any) -> Mapping[str, Any]:
        facts = model.facts
        return {
            "reference": model.reference,
            "model_id": model.model_id,
            "names": list(model.names),
            "path": model.path,
            "status": model.status,
            "format": facts.format,
            "kind": str(facts.kind),
            "architecture": facts.architecture,
            "label": facts.quant_label,
            "total_bytes": facts.total_bytes,
            "context_native": facts.context_native,
            "deployments": [d.name for d in self.kernel.state.deployments.values() if d.spec.reference in model.names
                            or d.spec.reference == model.reference],
        }  # fmt: skip

    def engines(self) -> tuple[Mapping[str, Any], ...]:
        installed = self.installations()
        views = []
        for adapter in self.carrier.resolver.adapters:
            mine = [one for one in installed if one.engine == adapter.id]
            views.append(
                {
                    "engine_id": adapter.id,
                    "title": adapter.title,
                    "enabled": True,
                    "releases": sorted({one.build.release for one in mine if one.build is not None}),
                    "installations": [self._installation(one) for one in mine],
                    "capabilities": sorted(adapter.traits.tasks),
                }
            )
        return tuple(views)

    def _installation(self, one: Installation) -> Mapping[str, Any]:
        users = [s.generation for s in self.kernel.state.sessions.values() if s.installation == one.installation_id]
        return {
            "installation_id": one.installation_id, "release": one.build.release if one.build else None,
            "host": "process", "origin": one.site.origin, "state": one.state, "detail": one.detail, "bytes": None,
            "path": one.site.executable, "used_by": users,
        }  # fmt: skip

    async def attempts(self, name: str, replica: int | None, limit: int) -> tuple[Attempt, ...]:
        deployment = self.kernel.orders.deployment(name)
        return await self.journal.attempts(deployment.name, replica, limit)

    def logs(
        self, subject: str | Generation | None, *, tail: int, follow: bool
    ) -> AsyncIterator[LogLine | Mapping[str, Any]]:
        return self.logbook.read(subject, tail=tail, follow=follow)

    # -- commands --------------------------------------------------------------------------------------------------

    def load(
        self, name: str, *, replica: int | None = None, settings: Mapping[str, Any] | None = None,
        load_timeout_s: float | None = None, by: str = "operator",
    ) -> OperationView:  # fmt: skip
        found = self.kernel.orders.deployment(name).name
        order = inputs.LoadDeployment(found, by, replica, settings, load_timeout_s)
        return self.census.operation(self.carrier.post(order))

    def unload(
        self, name: str, *, replica: int | None = None, mode: str = "drain", drain_s: float | None = None,
        by: str = "operator",
    ) -> OperationView:  # fmt: skip
        found = self.kernel.orders.deployment(name).name
        order = inputs.UnloadDeployment(found, by, replica, mode, drain_s)
        return self.census.operation(self.carrier.post(order))

    def stop(
        self, generation: Generation, *, mode: str = "drain", drain_s: float | None = None, by: str = "operator"
    ) -> OperationView:
        return self.census.operation(self.carrier.post(inputs.StopSession(generation, by, mode, drain_s)))

    def force_release(self, generation: Generation, *, by: str) -> SessionView:
        return self.census.session(self.carrier.post(inputs.ForceReleaseSession(generation, by)))

    def pin(self, name: str, *, pinned: bool) -> DeploymentView:
        found = self.kernel.orders.deployment(name).name
        return self.census.deployment(self.carrier.post(inputs.PinDeployment(found, pinned)))

    def scale(self, name: str, replicas: int) -> DeploymentView:
        found = self.kernel.orders.deployment(name).name
        return self.census.deployment(self.carrier.post(inputs.ScaleDeployment(found, replicas)))

    def release_hold(self, name: str, replica: int | None) -> DeploymentView:
        found = self.kernel.orders.deployment(name).name
        return self.census.deployment(self.carrier.post(inputs.ReleaseHold(found, replica)))

    def put_deployment(self, spec: DeploymentSpec, *, dry_run: bool = False) -> Mapping[str, Any]:
        answer: dict[str, Any] = self.carrier.post(inputs.PutDeployment(spec, dry_run))
        known = self.kernel.state.deployments.get(spec.name)
        view = asdict(self.census.deployment(known)) if known is not None else None
        return {"deployment": view, **answer}

    def delete_deployment(self, name: str) -> OperationView:
        found = self.kernel.orders.deployment(name).name
        return self.census.operation(self.carrier.post(inputs.DeleteDeployment(found, "operator")))

    def set_budget(self, pool: str, budget_bytes: int | None) -> PoolView:
        self.carrier.post(inputs.SetBudget(PoolId(pool), budget_bytes))
        return next(view for view in self.pools() if view.pool_id == pool)

    def cancel_operation(self, operation_id: OperationId) -> OperationView:
        return self.census.operation(self.carrier.post(inputs.CancelOperation(operation_id)))

    async def wait_operation(self, operation_id: OperationId, timeout_s: float) -> OperationView:
        """The operation once it is over, or as it is after ``timeout_s`` (C-8)."""
        view = self.operation(operation_id)
        if view.ended_at is not None or timeout_s <= 0:
            return view
        events = self.bus.subscribe(last_event_id=self.bus.last_id, topics=frozenset({"operation"}))
        with anyio.move_on_after(timeout_s):
            async with aclosing(events):  # its seat is free again at once, not when it is collected
                async for event in events:
                    if event.get("operation_id") == operation_id and event["event"] == "operation.finished":
                        break
        return self.operation(operation_id)

    def cancel_ticket(self, ticket_or_request: str) -> TicketId:
        ticket: Ticket = self.carrier.post(inputs.CancelTicket(ticket_or_request))
        return ticket.ticket_id

    # -- events ----------------------------------------------------------------------------------------------------

    def subscribe(
        self, *, last_event_id: str | None, topics: frozenset[str] | None
    ) -> AsyncIterator[Mapping[str, Any]]:
        return self.bus.subscribe(last_event_id=last_event_id, topics=topics)
