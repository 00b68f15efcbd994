"""The `Units` port: what a host can do for one life, and every answer it may give (S-25 to S-33).

A plan is complete before the port sees it. Implementations (`ProcessUnits`, `DockerUnits`, `FakeUnits`) pass one
contract suite; the session machine does not know which it has. Anything but the answers below is a bug of the
implementation: it never raises for what the world does, only for a wrong argument.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from stoker.domain.reconcile import Finding
from stoker.ids import Generation, Scope, UnitName


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens: a Unix socket path, or a loopback TCP address."""

    socket: str | None = None
    host: str = "127.0.0.1"
    port: int = 0

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """Everything needed to run one unit.

    ``argv`` and ``env`` may hold ``{port}``, replaced by the host at each port attempt. ``files`` are bare names to
    (text, secret) written 0600 into ``life_dir``. ``env`` is complete: nothing is inherited (S-46).
    ``fixed_port`` is a port the user chose and that is never changed (S-44). ``secrets`` may stand in no stored line:
    first the engine's token, if it has one, then those of the user.
    """

    scope: Scope
    generation: Generation
    name: UnitName
    deployment: str
    replica: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, tuple[str, bool]]
    endpoint: Endpoint
    life_dir: str
    log_path: str
    stop_grace_s: float
    secrets: tuple[str, ...] = ()
    fixed_port: int | None = None
    port_range: tuple[int, int] = (23100, 23999)
    orphan_grace_s: float = 2.0
    kill_confirm_s: float = 4.0
    needs_port: bool = True


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Pid, start time in clock ticks and boot id: together they never name another process (S-42)."""

    pid: int
    start_time: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class UnitIdentity:
    """What was started, as it is journalled. ``guardian`` and ``main`` for processes, ``runtime_id`` for containers."""

    generation: Generation
    kind: str
    guardian: ProcessIdentity | None = None
    main: ProcessIdentity | None = None
    members: tuple[ProcessIdentity, ...] = ()
    runtime_id: str | None = None
    life_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """How a unit ended. ``by``: engine, us, watchdog, host. ``oom_killed`` None: unknown."""

    code: int | None
    signal: int | None
    oom_killed: bool | None
    wall: float
    by: str


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process of a unit that is alive after a stop."""

    pid: int
    name: str
    state: str
    bytes: int | None = None


# -- answers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    plan: UnitPlan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    identity: UnitIdentity
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class StartFailed:
    """``may_exist`` is true unless it is known that nothing was created. ``kind`` is an error code of S-117."""

    kind: str
    may_exist: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    pass


@dataclass(frozen=True, slots=True)
class Exited:
    exit: Exit | None


@dataclass(frozen=True, slots=True)
class Absent:
    pass


@dataclass(frozen=True, slots=True)
class Changing:
    word: str


@dataclass(frozen=True, slots=True)
class Unknown:
    cause: str


@dataclass(frozen=True, slots=True)
class Lost:
    cause: str


class UnconfirmedCause(StrEnum):
    NO_ANSWER = "no-answer"
    RUNTIME_ERROR = "runtime-error"
    STILL_RUNNING = "still-running"
    UNKNOWN_STATE = "unknown-state"
    IDENTITY_UNREADABLE = "identity-unreadable"
    SURVIVORS = "survivors"


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Positive evidence that nothing of the unit is left (S-27). ``by``: guardian, cgroup, runtime, absent."""

    how: str
    exit: Exit | None
    by: str = "guardian"


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    cause: UnconfirmedCause
    detail: str = ""
    survivors: tuple[Survivor, ...] = ()


@dataclass(frozen=True, slots=True)
class Removed:
    pass


@dataclass(frozen=True, slots=True)
class Kept:
    cause: str


@dataclass(frozen=True, slots=True)
class LogLine:
    """``stream``: out or err. ``cursor`` orders lines of one unit; ``dropped`` lines were lost just before this one.

    ``repaint`` marks a line ended by a bare CR.
    """

    wall: float
    stream: str
    text: str
    cursor: int
    dropped: int = 0
    repaint: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Something on the host that carries our labels or marker: grounds for a report, never for an act (S-92)."""

    name: str
    scope: str
    generation: Generation | None
    state: str
    labels: Mapping[str, str] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    runtime_id: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Measured memory of a unit: proportional anonymous bytes, resident file bytes, members."""

    anonymous_bytes: int
    mapped_bytes: int
    members: tuple[ProcessIdentity, ...] = ()


PrepareAnswer = Prepared | PrepareFailed
StartAnswer = Started | StartFailed
InspectAnswer = Running | Exited | Absent | Changing | Unknown
WaitAnswer = Exited | Absent | Lost
StopAnswer = Confirmed | Unconfirmed
RemoveAnswer = Removed | Absent | Kept


class Units(Protocol):
    """One kind of host. All calls are cancellable, bounded by S-28 and independent of one another (S-33)."""

    kind: str

    async def prepare(self, plan: UnitPlan) -> PrepareAnswer:
        """Write the life directory (0700) and its files. Idempotent; no unit exists after it."""
        ...

    async def start(self, prepared: Prepared, port: int | None) -> StartAnswer:
        """Create and start the unit. ``port`` None: the host chooses one for an endpoint that needs it."""
        ...

    async def inspect(self, unit: UnitIdentity) -> InspectAnswer:
        """The unit's state by recorded identity, never by name alone. No side effect."""
        ...

    async def wait(self, unit: UnitIdentity) -> WaitAnswer:
        """Return when the unit has ended; at once when its end is known. Doubt is `Lost`."""
        ...

    def logs(self, unit: UnitIdentity, cursor: int = 0) -> AsyncIterator[LogLine]:
        """Lines after ``cursor``, then new ones as they come; ends with the unit. Never fails a session."""
        ...

    async def stop(self, unit: UnitIdentity, grace_s: float) -> StopAnswer:
        """TERM, grace, KILL, proof. Idempotent; safe on a unit that is gone (S-41)."""
        ...

    async def remove(self, unit: UnitIdentity) -> RemoveAnswer:
        """Delete what is left of a confirmed unit (life directory, container). Refuses a unit not confirmed."""
        ...

    async def survey(self, scope: Scope) -> tuple[Found, ...]:
        """Everything on the host that claims to be of ``scope``. Discovery only."""
        ...

    async def owns_listener(self, unit: UnitIdentity, endpoint: Endpoint) -> bool | None:
        """Does every listener that could accept for ``endpoint`` belong to the unit (S-45)?

        True: ours. False: a foreign one is there. None: nobody listens yet.
        """
        ...

    async def usage(self, unit: UnitIdentity) -> Usage | None:
        """Measured memory now; None when it cannot be read."""
        ...

    async def recover(self, generation: Generation, life_dir: str) -> UnitIdentity | None:
        """The identity durably recorded in ``life_dir`` (``unit.json``), or None if there is none (S-37)."""
        ...

    async def inspect_leftover(
        self, unit: UnitIdentity, *, intent_age_s: float | None = None, looked_again: int = 0
    ) -> Finding:
        """What the host says about a row of an earlier run, for `stoker.domain.reconcile.judge` (S-91)."""
        ...

    async def __aenter__(self) -> Self:
        """Take up work. Leaving it ends what still runs by its own guard; that is not a confirmed stop."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...
