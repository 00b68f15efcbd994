"""The durable record: intents before acts, outcomes after them (S-83 to S-89).

Calls are awaited by the shell and land in call order. A failed write raises `HostError` ``journal-unwritable`` to
its own caller only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from stoker.ids import Generation, Instance, Scope
from stoker.ports.units import ProcessIdentity, UnitIdentity

GENERATION_BLOCK = 256


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One life as the journal knows it. ``reservation`` in bytes per pool."""

    generation: Generation
    deployment: str
    replica: int
    model: str
    engine: str
    installation: str
    unit_kind: str
    load_key: str
    phase: str
    reservation: Mapping[str, int]
    life_dir: str
    reason: str | None = None
    created: float = 0.0
    ended: float | None = None
    instance: str = ""


@dataclass(frozen=True, slots=True)
class ActRow:
    """``outcome`` None: maybe running. ``verb``: start, stop, remove or force-release."""

    act_id: int
    generation: Generation
    verb: str
    intended_at: float
    outcome: str | None
    outcome_at: float | None
    instance: str = ""


@dataclass(frozen=True, slots=True)
class OpenLife:
    """A row that is not ``gone``, with all that is recorded of its unit."""

    session: SessionRow
    unit: UnitIdentity | None
    acts: tuple[ActRow, ...]
    processes: tuple[ProcessIdentity, ...]
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """The story of one load, kept across restarts (S-23). ``lines`` is the scrubbed tail of the log."""

    generation: Generation
    deployment: str
    replica: int
    outcome: str
    code: str | None = None
    reason: str | None = None
    message: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    exit: Mapping[str, Any] | None = None
    stages_ms: Mapping[str, int] = field(default_factory=dict)
    peak_bytes: int | None = None
    lines: tuple[str, ...] = ()
    started: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """A replica that may not start for now (S-113, S-114)."""

    deployment: str
    replica: int
    cause: str
    code: str
    message: str
    failures: int
    until: float | None
    since: float = 0.0
    trial_s: float = 300.0


@dataclass(frozen=True, slots=True)
class OperationRow:
    operation_id: str
    kind: str
    subject: str
    state: str
    body: Mapping[str, Any]
    created: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    caller: str
    route: str
    key: str
    body_digest: str
    status: int
    answer: bytes
    created: float
    operation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Residue:
    generation: Generation
    what: str
    path: str
    since: float


class Journal(Protocol):
    """One scope's record. Opened by the shell after the owner lock is held."""

    async def open(self, instance: Instance, identity: ProcessIdentity, version: str, wall: float) -> Scope:
        """Create or migrate the file, register this instance, and return the scope's id.

        Raises `HostError` ``journal-unwritable``; `StoreError` ``store-too-new`` for a newer schema.
        """
        ...

    async def generation_block(self) -> range:
        """The next `GENERATION_BLOCK` generations, stored before the first one is used (S-2)."""
        ...

    async def open_lives(self) -> tuple[OpenLife, ...]: ...
    async def write_session(self, row: SessionRow) -> None: ...
    async def write_phase(self, generation: Generation, phase: str, reason: str | None = None) -> None: ...
    async def intend(self, generation: Generation, verb: str, wall: float) -> int:
        """Write an intent durably and return its act id."""
        ...

    async def outcome(self, act_id: int, outcome: str, wall: float) -> None: ...
    async def write_unit(self, unit: UnitIdentity, state: str, confirmed_by: str | None = None) -> None: ...
    async def write_processes(self, generation: Generation, members: tuple[ProcessIdentity, ...]) -> None: ...
    async def end_session(self, generation: Generation, reason: str, confirmed_by: str, wall: float) -> None:
        """The confirmed outcome: phase ``gone`` and the unit's ``confirmed_by``, in one transaction."""
        ...

    async def write_attempt(self, attempt: Attempt) -> None:
        """Keeps the last 10 per replica and 500 per scope."""
        ...

    async def attempts(self, deployment: str, replica: int | None = None, limit: int = 10) -> tuple[Attempt, ...]: ...
    async def write_hold(self, hold: Hold) -> None: ...
    async def clear_hold(self, deployment: str, replica: int) -> None: ...
    async def holds(self) -> tuple[Hold, ...]: ...
    async def write_residue(self, residue: Residue) -> None: ...
    async def clear_residue(self, generation: Generation) -> None: ...
    async def residues(self) -> tuple[Residue, ...]: ...
    async def write_operation(self, row: OperationRow) -> None: ...
    async def operations(self) -> tuple[OperationRow, ...]: ...
    async def write_idempotency(self, row: IdempotencyRow) -> None: ...
    async def idempotency(self, caller: str, route: str, key: str) -> IdempotencyRow | None: ...
    async def write_events(self, events: tuple[Mapping[str, Any], ...]) -> None: ...
    async def events(self, after: str | None, limit: int) -> tuple[Mapping[str, Any], ...]: ...
    async def close(self) -> None: ...
