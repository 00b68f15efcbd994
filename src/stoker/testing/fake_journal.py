"""`FakeJournal`: the `Journal` of simulations. In memory, and as durable as the test that keeps the object.

A simulated kill of the daemon is an `open` by the next instance, with no `close` before it. A caller cancelled before
its turn has written nothing; one cancelled during ``delay_s`` has written without being told. Passes the same
contract suite as `SqliteJournal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import anyio

from stoker.domain.session import Phase
from stoker.errors import ErrorCode, HostError
from stoker.ids import Generation, Instance, Scope
from stoker.journal.records import clip_lines, event_wall
from stoker.journal.retention import DEFAULT_RETENTION, Retention
from stoker.ports.journal import (
    GENERATION_BLOCK,
    ActRow,
    Attempt,
    Hold,
    IdempotencyRow,
    OpenLife,
    OperationRow,
    Residue,
    SessionRow,
)
from stoker.ports.units import ProcessIdentity, UnitIdentity

T = TypeVar("T")

_READS = frozenset({"open_lives", "attempts", "holds", "residues", "operations", "idempotency", "events"})


@dataclass
class Tables:
    """What survives a kill."""

    scope: Scope
    next_generation: int = 1
    sessions: dict[Generation, SessionRow] = field(default_factory=dict)
    units: dict[Generation, tuple[UnitIdentity, str, str | None]] = field(default_factory=dict)
    processes: dict[Generation, tuple[ProcessIdentity, ...]] = field(default_factory=dict)
    acts: dict[int, ActRow] = field(default_factory=dict)
    attempts: dict[Generation, Attempt] = field(default_factory=dict)
    holds: dict[tuple[str, int], Hold] = field(default_factory=dict)
    residues: dict[tuple[Generation, str, str], Residue] = field(default_factory=dict)
    operations: dict[str, OperationRow] = field(default_factory=dict)
    idempotency: dict[tuple[str, str, str], IdempotencyRow] = field(default_factory=dict)
    events: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    damaged: set[Generation] = field(default_factory=set)


class FakeJournal:
    """``calls`` lists the writes in the order they landed, with their arguments. ``delay_s`` is the disk's time.

    ``fail(n)`` makes the n-th write from now fail (1 is the next); ``broken`` makes every write fail; ``hang()``
    stops all calls until ``resume()``; ``damage(generation)`` makes a life come back as a damaged row.
    """

    def __init__(
        self, scope: str = "5c0be000", *, delay_s: float = 0.0, retention: Retention = DEFAULT_RETENTION
    ) -> None:
        self.tables = Tables(Scope(scope))
        self.calls: list[tuple[Any, ...]] = []
        self.delay_s = delay_s
        self.broken = False
        self.set_aside: str | None = None
        self.instance: Instance | None = None
        self.instances: list[tuple[Instance, ProcessIdentity, str, float]] = []
        self._keep = retention
        self._to_fail: set[int] = set()
        self._writes = 0
        self._lock = anyio.Lock()
        self._may_go: anyio.Event | None = None

    # -- for tests -------------------------------------------------------------------------------------------------

    def fail(self, nth: int = 1) -> None:
        self._to_fail.add(self._writes + nth)

    def hang(self) -> None:
        self._may_go = anyio.Event()

    def resume(self) -> None:
        if self._may_go is not None:
            self._may_go.set()
        self._may_go = None

    def damage(self, generation: int) -> None:
        self.tables.damaged.add(Generation(generation))

    def verbs(self, generation: int) -> list[tuple[str, str | None]]:
        """(verb, outcome) of a life's acts, in order."""
        return [(act.verb, act.outcome) for act in self.tables.acts.values() if act.generation == generation]

    # -- the turn each call takes ----------------------------------------------------------------------------------

    async def _turn(self, name: str, act: Callable[[Tables], T], *arguments: Any) -> T:
        async with self._lock:
            while self._may_go is not None:
                await self._may_go.wait()
            if self.instance is None:
                raise _unwritable("it is not open")
            if name not in _READS:
                self._writes += 1
                if self.broken or self._writes in self._to_fail:
                    self._to_fail.discard(self._writes)
                    raise _unwritable("the disk is full")
            value = act(self.tables)
            if name not in _READS:
                self.calls.append((name, *arguments))
            await anyio.sleep(self.delay_s)
            return value

    async def open(self, instance: Instance, identity: ProcessIdentity, version: str, wall: float) -> Scope:
        # The instance before this one may have been killed in the middle of a call.
        self._lock, self._may_go, self.instance = anyio.Lock(), None, instance
        self.instances.append((instance, identity, version, wall))
        return await self._turn("open", lambda tables: tables.scope, instance)

    async def close(self) -> None:
        if self.instance is not None:
            await self._turn("close", lambda _: None)
        self.instance = None

    # -- lives -----------------------------------------------------------------------------------------------------

    async def generation_block(self) -> range:
        def take(tables: Tables) -> range:
            first = tables.next_generation
            tables.next_generation += GENERATION_BLOCK
            return range(first, tables.next_generation)

        return await self._turn("generation_block", take)

    async def open_lives(self) -> tuple[OpenLife, ...]:
        def read(tables: Tables) -> tuple[OpenLife, ...]:
            return tuple(
                OpenLife(
                    row,
                    tables.units[generation][0] if generation in tables.units else None,
                    tuple(act for act in tables.acts.values() if act.generation == generation),
                    tables.processes.get(generation, ()),
                    damaged=generation in tables.damaged,
                )
                for generation, row in sorted(tables.sessions.items())
                if row.phase != Phase.GONE
            )

        return await self._turn("open_lives", read)

    async def write_session(self, row: SessionRow) -> None:
        def write(tables: Tables) -> None:
            if not _is_gone(tables, row.generation):
                tables.sessions[row.generation] = replace(row, reservation=dict(row.reservation))

        await self._turn("write_session", write, row)

    async def write_phase(self, generation: Generation, phase: str, reason: str | None = None) -> None:
        if phase == Phase.GONE:
            raise AssertionError(f"{phase} is not for write_phase; a life ends with end_session")

        def write(tables: Tables) -> None:
            row = tables.sessions.get(generation)
            if row is None:
                raise _unwritable(f"it has no row of session {generation}")
            if row.phase != Phase.GONE:
                tables.sessions[generation] = replace(row, phase=Phase(phase).value, reason=reason or row.reason)

        await self._turn("write_phase", write, generation, phase, reason)

    async def intend(self, generation: Generation, verb: str, wall: float) -> int:
        def write(tables: Tables) -> int:
            act_id = len(tables.acts) + 1
            tables.acts[act_id] = ActRow(act_id, generation, verb, wall, None, None, self.instance or "")
            return act_id

        return await self._turn("intend", write, generation, verb)

    async def outcome(self, act_id: int, outcome: str, wall: float) -> None:
        def write(tables: Tables) -> None:
            act = tables.acts.get(act_id)
            if act is None:
                raise _unwritable(f"it has no row of act {act_id}")
            if act.outcome is None:
                tables.acts[act_id] = replace(act, outcome=outcome, outcome_at=wall)

        await self._turn("outcome", write, act_id, outcome)

    async def write_unit(self, unit: UnitIdentity, state: str, confirmed_by: str | None = None) -> None:
        def write(tables: Tables) -> None:
            tables.units[unit.generation] = (unit, state, confirmed_by)

        await self._turn("write_unit", write, unit, state, confirmed_by)

    async def write_processes(self, generation: Generation, members: tuple[ProcessIdentity, ...]) -> None:
        def write(tables: Tables) -> None:
            tables.processes[generation] = tuple(members)

        await self._turn("write_processes", write, generation, members)

    async def end_session(self, generation: Generation, reason: str, confirmed_by: str, wall: float) -> None:
        def write(tables: Tables) -> None:
            row = tables.sessions.get(generation)
            if row is not None and row.phase != Phase.GONE:
                tables.sessions[generation] = replace(row, phase=Phase.GONE.value, reason=reason, ended=wall)
            if generation in tables.units:
                tables.units[generation] = (tables.units[generation][0], "gone", confirmed_by)

        await self._turn("end_session", write, generation, reason, confirmed_by)

    # -- attempts, holds, residue ----------------------------------------------------------------------------------

    async def write_attempt(self, attempt: Attempt) -> None:
        def write(tables: Tables) -> None:
            tables.attempts[attempt.generation] = replace(attempt, lines=clip_lines(attempt.lines))
            newest = sorted(tables.attempts, reverse=True)
            replica = [g for g in newest if _replica_of(tables.attempts[g]) == _replica_of(attempt)]
            for old in {*newest[self._keep.attempts_rows :], *replica[self._keep.attempts_per_replica :]}:
                del tables.attempts[old]

        await self._turn("write_attempt", write, attempt)

    async def attempts(self, deployment: str, replica: int | None = None, limit: int = 10) -> tuple[Attempt, ...]:
        def read(tables: Tables) -> tuple[Attempt, ...]:
            found = [a for a in tables.attempts.values() if a.deployment == deployment]
            found = [a for a in found if replica is None or a.replica == replica]
            return tuple(sorted(found, key=lambda a: -a.generation)[:limit])

        return await self._turn("attempts", read)

    async def write_hold(self, hold: Hold) -> None:
        def write(tables: Tables) -> None:
            tables.holds[hold.deployment, hold.replica] = hold

        await self._turn("write_hold", write, hold)

    async def clear_hold(self, deployment: str, replica: int) -> None:
        await self._turn(
            "clear_hold", lambda tables: tables.holds.pop((deployment, replica), None), deployment, replica
        )

    async def holds(self) -> tuple[Hold, ...]:
        return await self._turn("holds", lambda tables: tuple(hold for _, hold in sorted(tables.holds.items())))

    async def write_residue(self, residue: Residue) -> None:
        def write(tables: Tables) -> None:
            tables.residues.setdefault((residue.generation, residue.what, residue.path), residue)

        await self._turn("write_residue", write, residue)

    async def clear_residue(self, generation: Generation) -> None:
        def write(tables: Tables) -> None:
            tables.residues = {key: residue for key, residue in tables.residues.items() if key[0] != generation}

        await self._turn("clear_residue", write, generation)

    async def residues(self) -> tuple[Residue, ...]:
        return await self._turn("residues", lambda tables: tuple(row for _, row in sorted(tables.residues.items())))

    # -- operations, idempotency keys, events ----------------------------------------------------------------------

    async def write_operation(self, row: OperationRow) -> None:
        def write(tables: Tables) -> None:
            tables.operations[row.operation_id] = row
            ended = [(r.ended, r.operation_id) for r in tables.operations.values() if r.ended is not None]
            newest = sorted(ended, reverse=True)
            for n, (when, operation_id) in enumerate(newest):
                if n >= self._keep.operations_rows or when < newest[0][0] - self._keep.operations_s:
                    del tables.operations[operation_id]

        await self._turn("write_operation", write, row)

    async def operations(self) -> tuple[OperationRow, ...]:
        def read(tables: Tables) -> tuple[OperationRow, ...]:
            return tuple(sorted(tables.operations.values(), key=lambda row: (row.created, row.operation_id)))

        return await self._turn("operations", read)

    async def write_idempotency(self, row: IdempotencyRow) -> None:
        def write(tables: Tables) -> None:
            kept = tables.idempotency
            kept.pop((row.caller, row.route, row.key), None)
            kept[row.caller, row.route, row.key] = row
            newest = max(r.created for r in kept.values())
            for key in [key for key, r in kept.items() if r.created < newest - self._keep.idempotency_s]:
                del kept[key]
            for key in list(kept)[: max(0, len(kept) - self._keep.idempotency_rows)]:
                del kept[key]

        await self._turn("write_idempotency", write, row)

    async def idempotency(self, caller: str, route: str, key: str) -> IdempotencyRow | None:
        return await self._turn("idempotency", lambda tables: tables.idempotency.get((caller, route, key)))

    async def write_events(self, events: tuple[Mapping[str, Any], ...]) -> None:
        def write(tables: Tables) -> None:
            for event in events:
                tables.events.setdefault(event["id"], dict(event))
            for old in list(tables.events)[: max(0, len(tables.events) - self._keep.events_rows)]:
                del tables.events[old]
            newest = max((event_wall(event) for event in tables.events.values()), default=0.0)
            for key in [k for k, e in tables.events.items() if event_wall(e) < newest - self._keep.events_s]:
                del tables.events[key]

        await self._turn("write_events", write, *(event["id"] for event in events))

    async def events(self, after: str | None, limit: int) -> tuple[Mapping[str, Any], ...]:
        def read(tables: Tables) -> tuple[Mapping[str, Any], ...]:
            names = list(tables.events)
            first = names.index(after) + 1 if after in tables.events else 0
            return tuple(tables.events[name] for name in names[first : first + limit])

        return await self._turn("events", read)


def _is_gone(tables: Tables, generation: Generation) -> bool:
    row = tables.sessions.get(generation)
    return row is not None and row.phase == Phase.GONE


def _replica_of(attempt: Attempt) -> tuple[str, int]:
    return attempt.deployment, attempt.replica


def _unwritable(why: str) -> HostError:
    return HostError(
        ErrorCode.JOURNAL_UNWRITABLE,
        f"The journal cannot be used: {why}.",
        remedy="Check that its disk has free space and that the folder can be written. Sessions that run go on.",
    )
