"""Frozen records that the kernel hands out: what lists, shows and events say (C-7). JSON member names are these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OperationView:
    """C-8. ``state``: pending, running, succeeded, failed, cancelled. ``error`` is a Problem object."""

    operation_id: str
    kind: str
    subject: str
    state: str
    stage: str | None
    progress: Mapping[str, Any] | None
    cancellable: bool
    requested_by: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    error: Mapping[str, Any] | None
    result: Mapping[str, Any]
    revision: int


@dataclass(frozen=True, slots=True)
class SessionView:
    generation: int
    deployment: str
    replica: int
    phase: str
    reason: str | None
    also: tuple[str, ...]
    since: float
    engine: str
    installation: str
    unit: Mapping[str, Any]
    reservation: Mapping[str, int]
    measured: Mapping[str, int]
    slots: int | None
    width: int | None
    in_flight: int
    earmarked_for: str | None
    liveness: str
    context_tokens: int | None
    capabilities: tuple[str, ...]
    startup: Mapping[str, Any] | None
    last_used: float | None
    idle_deadline: float | None
    pinned: bool
    upstream_auth: str
    hardening_missing: tuple[str, ...]
    exit: Mapping[str, Any] | None
    launch: Mapping[str, Any]
    confirmed_by: str | None
    unconfirmed: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DeploymentView:
    name: str
    names: tuple[str, ...]
    spec: Mapping[str, Any]
    origin: str
    revision: int
    state: str
    sessions: tuple[int, ...]
    places: int
    in_flight: int
    waiting: int
    estimate: Mapping[str, int]
    hold: Mapping[str, Any] | None
    last_error: Mapping[str, Any] | None
    model: str | None
    engine: str | None
    size_bytes: int | None
    context_tokens: int | None
    last_used: float | None
    created: int


@dataclass(frozen=True, slots=True)
class PoolView:
    """Figures nobody could read are None, never 0."""

    pool_id: str
    kind: str
    device: str | None
    capacity_bytes: int
    budget_bytes: int
    budget_origin: str
    reserved_bytes: int
    headroom_bytes: int
    measured_bytes: int | None
    outside_bytes: int | None
    overdraft_bytes: int
    unconfirmed_bytes: int
    reservations: tuple[Mapping[str, int], ...]


@dataclass(frozen=True, slots=True)
class TicketView:
    ticket_id: str
    request_id: str
    deployment: str
    state: str
    position: int | None
    blocked_by: str | None
    queued_at: float
    deadline: float
    waited_ms: int


@dataclass(frozen=True, slots=True)
class StatusView:
    instance: str
    version: str
    scope: str
    state: str
    started_at: float
    addresses: Mapping[str, str]
    open: int
    waiting: int
    in_flight: int
    sessions: Mapping[str, int]
    pools: tuple[PoolView, ...]
    config: Mapping[str, Any]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    at: float
    last_event_id: str
    status: StatusView
    deployments: tuple[DeploymentView, ...]
    sessions: tuple[SessionView, ...]
    queue: tuple[TicketView, ...]
    pools: tuple[PoolView, ...]
    operations: tuple[OperationView, ...]
    cache: Mapping[str, Any] = field(default_factory=dict)
