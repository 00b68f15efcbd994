"""What the API answers: one frozen record for each kind of thing, times as text (C-7, C-8).

Made from the runtime's own frozen views by member name. Times become RFC 3339 UTC with milliseconds; a figure that
nobody could read is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, PlainSerializer, WithJsonSchema


def rfc3339(wall_s: float) -> str:
    """``2026-01-02T03:04:05.678Z``."""
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Time = Annotated[
    float,
    PlainSerializer(rfc3339, return_type=str, when_used="json-unless-none"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
Table = Mapping[str, Any]


class View(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


T = TypeVar("T")


class Page(View, Generic[T]):
    """Part of a list in a stable order; ``next`` is the ``cursor`` of the following part."""

    items: list[T]
    next: str | None = None


class Problem(View):
    """C-11."""

    type: str
    status: int
    code: str
    message: str
    remedy: str
    details: Table = {}
    request_id: str | None = None
    retry_after_s: float | None = None


class Operation(View):
    operation_id: str
    kind: str
    subject: str
    state: str
    stage: str | None
    progress: Table | None
    cancellable: bool
    requested_by: str
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    error: Problem | None
    result: Table
    revision: int


class Hold(View):
    replica: int
    cause: str
    code: str
    message: str
    failures: int
    until: Time | None


class Deployment(View):
    name: str
    names: list[str]
    spec: Table
    origin: str
    revision: int
    state: str
    sessions: list[int]
    places: int
    in_flight: int
    waiting: int
    estimate: dict[str, int]
    hold: Hold | None
    last_error: Problem | None
    model: str | None
    engine: str | None
    size_bytes: int | None
    context_tokens: int | None
    last_used: Time | None


class Unconfirmed(View):
    cause: str | None
    attempts: int
    next_retry: Time | None
    survivors: list[Table]


class Session(View):
    generation: int
    deployment: str
    replica: int
    phase: str
    reason: str | None
    also: list[str]
    since: Time
    engine: str
    installation: str
    unit: Table
    reservation: dict[str, int]
    measured: dict[str, int]
    slots: int | None
    width: int | None
    in_flight: int
    earmarked_for: str | None
    liveness: str
    context_tokens: int | None
    capabilities: list[str]
    startup: Table | None
    last_used: Time | None
    idle_deadline: Time | None
    pinned: bool
    upstream_auth: str
    hardening_missing: list[str]
    exit: Table | None
    launch: Table
    confirmed_by: str | None
    unconfirmed: Unconfirmed | None


class Pool(View):
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
    reservations: list[dict[str, int]]


class Ticket(View):
    ticket_id: str
    request_id: str
    deployment: str
    state: str
    position: int | None
    blocked_by: str | None
    queued_at: Time
    deadline: Time
    waited_ms: int


class Status(View):
    instance: str
    version: str
    scope: str
    state: str
    started_at: Time
    addresses: dict[str, str]
    open: int
    waiting: int
    in_flight: int
    sessions: dict[str, int]
    pools: list[Pool]
    config: Table
    warnings: list[str]


class Snapshot(View):
    at: Time
    last_event_id: str
    status: Status
    deployments: list[Deployment]
    sessions: list[Session]
    queue: list[Ticket]
    pools: list[Pool]
    operations: list[Operation]
    cache: Table


class Check(View):
    name: str
    ok: bool
    since: Time
    detail: str


class Health(View):
    live: bool
    ready: bool
    checks: list[Check]


class Put(View):
    """``deployment`` is null after a dry run for a name that is not there yet."""

    deployment: Deployment | None
    created: bool
    changes: list[Table]
    restarts: list[int]


class QueueLimits(View):
    max_queued: int
    max_in_flight: int | None
    max_wait_s: float


class DeploymentQueue(View):
    name: str
    places: int
    in_flight: int
    waiting: int
    limits: QueueLimits
    tickets: list[Ticket]


class Queue(View):
    deployments: list[DeploymentQueue]


class Cancelled(View):
    """Where a ticket is that was told to end: ``cancelled``, or still ``granted`` and about to be cut (R-25)."""

    ticket_id: str
    state: str


class Attempt(View):
    generation: int
    deployment: str
    replica: int
    outcome: str
    code: str | None
    reason: str | None
    message: str
    numbers: Table
    exit: Table | None
    stages_ms: dict[str, int]
    peak_bytes: int | None
    lines: list[str]
    started: Time
    ended: Time


class Model(View):
    reference: str
    model_id: str
    names: list[str]
    path: str
    status: str
    format: str
    kind: str
    architecture: str | None
    label: str | None
    total_bytes: int
    context_native: int | None
    deployments: list[str]


class Installation(View):
    installation_id: str
    release: str | None
    host: str
    origin: str
    state: str
    detail: str | None
    bytes: int | None
    path: str | None
    used_by: list[int]


class Engine(View):
    engine_id: str
    title: str
    enabled: bool
    releases: list[str]
    installations: list[Installation]
    capabilities: list[str]


class Line(View):
    """``wall`` is null where the log does not say when."""

    wall: Time | None
    stream: str
    text: str
    dropped: int = 0
    repaint: bool = False


class Log(View):
    """Which life answers (S-24), then its lines."""

    model_config = ConfigDict(extra="allow", frozen=True)

    subject: str
    lines: list[Line]


class Config(View):
    """Every effective value with the origin of those that were given; secrets show as set."""

    model_config = ConfigDict(extra="allow", frozen=True, from_attributes=True)

    revision: int
    values: Table
    origins: dict[str, str]
    pending: list[Any]


class Alive(View):
    live: bool = True


class Ready(View):
    ready: bool = True
