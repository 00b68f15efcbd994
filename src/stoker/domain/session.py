"""The words of the session machine: its state, what may come in, what it asks for (S-5 to S-10).

`stoker.domain.lifecycle` holds the table and the step; nothing else changes a phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stoker.ids import DeploymentName, Generation, PoolId


class Phase(StrEnum):
    RESERVED = "reserved"
    PREPARING = "preparing"
    STARTING = "starting"
    INITIALIZING = "initializing"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOP_UNCONFIRMED = "stop-unconfirmed"
    GONE = "gone"


class Reason(StrEnum):
    """Why a life ended (S-10). The first reason stays; later ones are kept beside it."""

    OPERATOR = "operator"
    IDLE = "idle"
    EVICTED = "evicted"
    PREEMPTED = "preempted"
    SCALED_IN = "scaled-in"
    CONFIG_CHANGED = "config-changed"
    SUPERSEDED = "superseded"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"
    MODEL_REMOVED = "model-removed"
    SHUTDOWN = "shutdown"
    ROOM_DENIED = "room-denied"
    PREPARE_FAILED = "prepare-failed"
    START_FAILED = "start-failed"
    LOAD_TIMED_OUT = "load-timed-out"
    LOAD_STALLED = "load-stalled"
    READY_REFUSED = "ready-refused"
    EXITED_BEFORE_READY = "exited-before-ready"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out-of-memory"
    HEARTBEAT_LOST = "heartbeat-lost"
    HUNG = "hung"
    DEVICE_LOST = "device-lost"
    INTERNAL_ERROR = "internal-error"
    ORPHANED = "orphaned"
    FORCE_RELEASED = "force-released"


ASKED = frozenset(
    {
        Reason.OPERATOR, Reason.IDLE, Reason.EVICTED, Reason.PREEMPTED, Reason.SCALED_IN, Reason.CONFIG_CHANGED,
        Reason.SUPERSEDED, Reason.ABANDONED, Reason.CANCELLED, Reason.MODEL_REMOVED, Reason.SHUTDOWN,
    }
)  # fmt: skip


class Liveness(StrEnum):
    OK = "ok"
    SUSPECT = "suspect"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a load failed or a session crashed: an ErrorCode value, one sentence, numbers, and the engine's lines."""

    code: str
    message: str
    kind: str = "other"
    remedy: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    excerpt: tuple[str, ...] = ()
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """A unit's end as the machine sees it. ``by``: engine, us, watchdog, host."""

    code: int | None = None
    signal: int | None = None
    oom_killed: bool | None = None
    wall: float = 0.0
    by: str = "engine"


@dataclass(frozen=True, slots=True)
class SessionState:
    """One life. Everything a decision about it needs; replaced whole by each step.

    ``awaiting_explanation`` holds a confirmed end back until `ExitExplained` (T4); ``load_reported`` and
    ``crash_reported`` keep S-22's "exactly one" (an adopted or leftover life begins with its load reported: it has no
    load events). ``ended_itself``: the unit exited unasked. ``port_attempts`` counts from 1. ``stop_grace_s`` is the
    grace in force, None: the deployment's own. ``unit_id`` is the unit's name on the host. ``stop_attempts`` counts
    stops that were not confirmed, ``failed_retries`` those of them that were retries (S-32).
    """

    generation: Generation
    deployment: DeploymentName
    replica: int
    phase: Phase
    reservation: Mapping[PoolId, int]
    unit_kind: str = "process"
    since: float = 0.0
    reason: Reason | None = None
    also: tuple[Reason, ...] = ()
    in_flight: int = 0
    liveness: Liveness = Liveness.OK
    stage: str = "claiming-room"
    percent: int | None = None
    port_attempts: int = 1
    has_start_intent: bool = False
    was_ready: bool = False
    adopted: bool = False
    stop_mode: str = "drain"
    stop_grace_s: float | None = None
    started_at: float = 0.0
    load_started_at: float = 0.0
    ready_at: float | None = None
    failure: Failure | None = None
    exit: ExitFacts | None = None
    stop_confirmed: bool = False
    confirmed_by: str | None = None
    awaiting_explanation: bool = False
    load_reported: bool = False
    crash_reported: bool = False
    unconfirmed_cause: str | None = None
    survivors: tuple[Any, ...] = ()
    stop_attempts: int = 0
    next_retry_at: float | None = None
    drain_deadline: float | None = None
    force_release_by: str | None = None
    unit_id: str = ""
    endpoint_kind: str = "tcp"
    hardening_missing: tuple[str, ...] = ()
    substituted_card: Mapping[str, Any] | None = None
    stop_begun_at: float | None = None
    ended_itself: bool = False
    in_flight_failed: int = 0
    failed_retries: int = 0
    supervisor_failures: int = 0


# -- commands ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stop:
    """End this life. ``mode``: drain or now; ``drain_s`` bounds the drain; ``grace_s`` None: the deployment's.

    A kill is mode now with a grace of 0 (S-29).
    """

    generation: Generation
    reason: Reason
    mode: str = "drain"
    drain_s: float = 30.0
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """``by``: caller or operator; what other reasons imply goes before it in the event (S-116)."""

    generation: Generation
    reason: Reason = Reason.CANCELLED
    by: str = "operator"


@dataclass(frozen=True, slots=True)
class AdoptSettings:
    generation: Generation
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RetryStop:
    generation: Generation


@dataclass(frozen=True, slots=True)
class ForceRelease:
    generation: Generation
    by: str


# -- observations --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoomClaimed:
    generation: Generation


@dataclass(frozen=True, slots=True)
class RoomDenied:
    generation: Generation
    failure: Failure


@dataclass(frozen=True, slots=True)
class Prepared:
    generation: Generation


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    generation: Generation
    failure: Failure


@dataclass(frozen=True, slots=True)
class Started:
    """The unit runs. ``unit`` is the host's identity record, opaque here; ``endpoint_kind``: tcp or unix."""

    generation: Generation
    unit: Any
    endpoint: Any
    endpoint_kind: str = "tcp"
    hardening_missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartFailed:
    generation: Generation
    failure: Failure
    may_exist: bool
    retry_port: bool = False


@dataclass(frozen=True, slots=True)
class StageSeen:
    generation: Generation
    stage: str
    percent: int | None
    elapsed_ms: int = 0
    deadline_ms: int = 0
    ceiling_ms: int = 0


@dataclass(frozen=True, slots=True)
class BecameReady:
    """``accepted`` is what the adapter proved (width, window, capabilities), opaque here."""

    generation: Generation
    accepted: Any
    measured: Mapping[PoolId, int] = field(default_factory=dict)
    stages_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadyRefused:
    generation: Generation
    failure: Failure


@dataclass(frozen=True, slots=True)
class LoadTimedOut:
    generation: Generation
    failure: Failure
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class LivenessChanged:
    generation: Generation
    liveness: Liveness
    failures: int = 0


@dataclass(frozen=True, slots=True)
class InFlightZero:
    generation: Generation


@dataclass(frozen=True, slots=True)
class DrainExpired:
    generation: Generation


@dataclass(frozen=True, slots=True)
class UnitExited:
    generation: Generation
    exit: ExitFacts


@dataclass(frozen=True, slots=True)
class ExitExplained:
    generation: Generation
    failure: Failure


@dataclass(frozen=True, slots=True)
class StopConfirmed:
    generation: Generation
    by: str
    exit: ExitFacts | None = None


@dataclass(frozen=True, slots=True)
class StopUnconfirmed:
    """Not proven gone. ``survivors`` are records with ``pid``, ``name`` and ``bytes``, opaque otherwise."""

    generation: Generation
    cause: str
    detail: str = ""
    survivors: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ForceReleaseRecorded:
    generation: Generation
    by: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """``timer``: drain, retry-stop or reserved."""

    generation: Generation
    timer: str


@dataclass(frozen=True, slots=True)
class SupervisorFailed:
    generation: Generation
    detail: str


Command = Stop | Cancel | AdoptSettings | RetryStop | ForceRelease
Observation = (
    RoomClaimed | RoomDenied | Prepared | PrepareFailed | Started | StartFailed | StageSeen | BecameReady
    | ReadyRefused | LoadTimedOut | LivenessChanged | InFlightZero | DrainExpired | UnitExited | ExitExplained
    | StopConfirmed | StopUnconfirmed | ForceReleaseRecorded | TimerFired | SupervisorFailed
)  # fmt: skip
Input = Command | Observation


# -- effects: complete instructions, executed in the order given (S-7) --------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimRoom:
    generation: Generation


@dataclass(frozen=True, slots=True)
class ReleaseRoom:
    """Give the machine claim back, and the start lease with it if it is still held."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class ReleaseStartLease:
    generation: Generation


@dataclass(frozen=True, slots=True)
class PrepareUnit:
    generation: Generation


@dataclass(frozen=True, slots=True)
class StartUnit:
    """``attempt`` counts port attempts from 1."""

    generation: Generation
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class WatchLoad:
    generation: Generation


@dataclass(frozen=True, slots=True)
class WatchUnit:
    generation: Generation


@dataclass(frozen=True, slots=True)
class OpenUpstream:
    generation: Generation


@dataclass(frozen=True, slots=True)
class CloseUpstream:
    generation: Generation
    code: str


@dataclass(frozen=True, slots=True)
class SavePromptCache:
    generation: Generation


@dataclass(frozen=True, slots=True)
class ExplainExit:
    generation: Generation
    exit: ExitFacts
    phase: Phase


@dataclass(frozen=True, slots=True)
class StopUnit:
    """``grace_s`` None: the deployment's own."""

    generation: Generation
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class CleanUp:
    generation: Generation


@dataclass(frozen=True, slots=True)
class RecordForceRelease:
    generation: Generation
    by: str


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """Write the load's outcome to the journal: ready, failed or cancelled (S-23).

    ``crashed`` adds the end of a life that had been ready to its attempt, and a later explanation replaces an earlier
    one (S-111): there is one attempt per generation.
    """

    generation: Generation
    outcome: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """``delay_s`` None: the kernel's back-off for this attempt (S-30)."""

    generation: Generation
    timer: str
    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class CancelEffects:
    """Cancel load and watch effects of this life and wait for them (T2)."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Publish:
    """An event of S-116 with its own fields; the kernel adds the common ones and numbers it."""

    generation: Generation
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


Effect = (
    ClaimRoom | ReleaseRoom | ReleaseStartLease | PrepareUnit | StartUnit | WatchLoad | WatchUnit | OpenUpstream
    | CloseUpstream | SavePromptCache | ExplainExit | StopUnit | CleanUp | RecordForceRelease | RecordAttempt
    | ArmTimer | CancelEffects | Publish
)  # fmt: skip


# -- what a step is --------------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """``dropped`` and ``refused`` change nothing (S-4); ``joined`` shares the end that has already begun (S-20)."""

    APPLIED = "applied"
    DROPPED = "dropped"
    REFUSED = "refused"
    JOINED = "joined"


@dataclass(frozen=True, slots=True)
class Step:
    """The state after one input, what to carry out in this order, and what became of the input."""

    state: SessionState
    effects: tuple[Effect, ...] = ()
    outcome: Outcome = Outcome.APPLIED
    refusal: str | None = None
