"""Every piece of mutable runtime state, in one place and with one owner: the kernel.

Nothing outside the kernel's own modules writes to these records; surfaces get the frozen views of
`stoker.runtime.census`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.domain.budget import Ledger
from stoker.domain.context import LaunchPlan, PlanRequest
from stoker.domain.deployments import DeploymentSpec
from stoker.domain.hardware import Hardware
from stoker.domain.models import StoredModel
from stoker.domain.queueing import Queue
from stoker.domain.restart import RestartState
from stoker.domain.session import Failure, Phase, SessionState
from stoker.errors import StokerError
from stoker.ids import DeploymentName, Generation, Instance, OperationId, PoolId, Scope, TicketId
from stoker.observability.metrics import Meters
from stoker.ports.engines import Accepted, Adapter, Installation
from stoker.ports.units import Endpoint, UnitIdentity
from stoker.runtime.tickets import Door, Ticket

LOADING = frozenset({Phase.RESERVED, Phase.PREPARING, Phase.STARTING, Phase.INITIALIZING})
LIVE = LOADING | {Phase.READY}


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a deployment would run: model, engine and settings, resolved and validated (S-13, checks 2, 6 and 7)."""

    model: StoredModel
    adapter: Adapter
    installation: Installation
    settings: Any
    request: PlanRequest
    load_key: str


@dataclass(slots=True, eq=False)
class Replica:
    """The n-th copy of a deployment: its present life, and what its past lives taught."""

    index: int
    generation: Generation | None = None
    restart: RestartState = field(default_factory=RestartState)
    load_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    last_failure: Failure | None = None
    port_losses: int = 0


@dataclass(slots=True, eq=False)
class Want:
    """A standing wish to have a replica up: an explicit load, a pin or a preload. ``until`` bounds the wait.

    ``asked_settings``: it was for settings of its own, so another load key does not fulfil it (S-12).
    """

    since: float
    replica: int | None = None
    operation: OperationId | None = None
    until: float = math.inf
    load_timeout_s: float | None = None
    asked_settings: bool = False


@dataclass(slots=True, eq=False)
class Deployment:
    """Desired state and everything that hangs on the name.

    ``changing``: it runs on settings that were changed, and the new ones are not known to be right yet.
    """

    spec: DeploymentSpec
    created_at: float
    created_wall: float = 0.0
    revision: int = 1
    prospect: Prospect | None = None
    prospect_fresh: bool = False
    resolving: bool = False
    changing: bool = False
    problem: StokerError | None = None
    replicas: dict[int, Replica] = field(default_factory=dict)
    queue: Queue = field(default_factory=Queue)
    tickets: dict[TicketId, Ticket] = field(default_factory=dict)
    wants: list[Want] = field(default_factory=list)
    stopped_by_operator: bool = False
    removing: OperationId | None = None
    in_flight: int = 0
    mean_service_s: float = 1.0
    last_used_wall: float | None = None
    blocked_on: str = ""
    blocked_by: tuple[Generation, ...] = ()
    last_verdict: tuple[str, tuple[Generation, ...]] | None = None

    @property
    def name(self) -> DeploymentName:
        return self.spec.name

    def replica(self, index: int) -> Replica:
        if index not in self.replicas:
            self.replicas[index] = Replica(index)
        return self.replicas[index]


@dataclass(slots=True, eq=False)
class Session:
    """One life, as the kernel keeps it: the machine's state and what the rest of the kernel needs beside it."""

    state: SessionState
    model: str
    engine: str
    installation: str
    plan: LaunchPlan | None = None
    prospect: Prospect | None = None
    load_key: str = ""
    endpoint: Endpoint | None = None
    unit: UnitIdentity | None = None
    accepted: Accepted | None = None
    door: Door | None = None
    width: int = 1
    grants: dict[TicketId, Ticket] = field(default_factory=dict)
    keep_alive_wishes: dict[str, float] = field(default_factory=dict)
    keep_alive_s: float = 300.0
    last_end: float = 0.0
    last_used_wall: float | None = None
    recent_grants: deque[float] = field(default_factory=lambda: deque(maxlen=512))
    earmarked_for: DeploymentName | None = None
    measured: Mapping[PoolId, int] = field(default_factory=dict)
    startup: Mapping[str, Any] = field(default_factory=dict)
    stages_ms: Mapping[str, int] = field(default_factory=dict)
    operations: list[OperationId] = field(default_factory=list)
    last_forced_retry: float = -math.inf
    launch_shown: tuple[str, ...] = ()
    env_names: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    upstream_auth: str = "token"
    pinned: bool = False
    idle_alarm_at: float | None = None

    @property
    def generation(self) -> Generation:
        return self.state.generation

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def in_flight(self) -> int:
        """Grants not yet over; a holder gives one back once the engine has stopped working on it (R-8, R-83)."""
        return len(self.grants)

    @property
    def idle_at(self) -> float:
        """Loop time at which the keep-alive ends; infinite while in use or kept until unloaded (R-48, R-49)."""
        if self.in_flight or self.pinned:
            return math.inf
        keep_s = max(self.keep_alive_wishes.values(), key=_as_duration, default=self.keep_alive_s)
        return self.last_end + _as_duration(keep_s)


def _as_duration(keep_alive_s: float) -> float:
    return math.inf if keep_alive_s < 0 else keep_alive_s


@dataclass(slots=True, eq=False)
class Operation:
    """Work asked for by the control API (C-8). ``pending`` are the lives whose ends it waits for."""

    operation_id: OperationId
    kind: str
    subject: str
    requested_by: str
    created_wall: float
    state: str = "pending"
    stage: str | None = None
    percent: int | None = None
    started_wall: float | None = None
    ended_wall: float | None = None
    error: StokerError | None = None
    result: dict[str, Any] = field(default_factory=dict)
    pending: set[Generation] = field(default_factory=set)
    revision: int = 1
    asked_settings: bool = False

    @property
    def is_over(self) -> bool:
        return self.state in {"succeeded", "failed", "cancelled"}


@dataclass(slots=True)
class Alarms:
    """Times at which the kernel wants to be called. Stale ones are harmless: whoever is woken looks afresh."""

    _heap: list[float] = field(default_factory=list)

    def at(self, when: float) -> None:
        if when < math.inf:
            heapq.heappush(self._heap, when)

    def next(self) -> float:
        return self._heap[0] if self._heap else math.inf

    def pass_by(self, now: float) -> None:
        while self._heap and self._heap[0] <= now:
            heapq.heappop(self._heap)


@dataclass(slots=True, eq=False)
class KernelState:
    """What the kernel owns. ``now`` is loop time of the step in hand, ``wall`` its wall time.

    ``stalled``: deployments whose queue is stuck past its bound, and since when (R-33).
    """

    scope: Scope
    instance: Instance
    version: str
    started_wall: float
    ledger: Ledger
    hardware: Hardware
    generations: Iterator[Generation]
    now: float = 0.0
    wall: float = 0.0
    phase: str = "starting"  # starting | ready | stopping
    deployments: dict[DeploymentName, Deployment] = field(default_factory=dict)
    names: dict[str, DeploymentName] = field(default_factory=dict)
    sessions: dict[Generation, Session] = field(default_factory=dict)
    waiting: dict[TicketId, Ticket] = field(default_factory=dict)
    operations: dict[OperationId, Operation] = field(default_factory=dict)
    timers: dict[tuple[Generation, str], float] = field(default_factory=dict)
    alarms: Alarms = field(default_factory=Alarms)
    automatic_budgets: dict[PoolId, int] = field(default_factory=dict)
    budget_origins: dict[str, str] = field(default_factory=dict)
    stalled: dict[DeploymentName, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    meters: Meters = field(default_factory=Meters)
    seq: int = 0
    stale_plan: bool = False

    def of(self, deployment: Deployment) -> list[Session]:
        """The lives of a deployment that still hold memory, lowest replica first."""
        if len(deployment.replicas) == 1:
            for replica in deployment.replicas.values():
                return [] if replica.generation is None else [self.sessions[replica.generation]]
        found = (
            self.sessions[replica.generation]
            for _, replica in sorted(deployment.replicas.items())
            if replica.generation is not None
        )
        return list(found)

    def blocked_by(self, deployment: Deployment) -> str:
        """R-5's word for what the head of a queue waits for."""
        live = [session for session in self.of(deployment) if session.phase in LIVE]
        if any(session.phase in LOADING for session in live):
            return "load"
        if live:
            return "earmark" if all(session.earmarked_for is not None for session in live) else "place"
        words = {"busy": "in-flight", "loading": "load", "load": "load", "back-off": "back-off", "": "load"}
        return words.get(deployment.blocked_on, "memory")
