"""`SqliteJournal`: the durable record of one data folder in one SQLite file (S-83 to S-88).

Every write is on disk when its call returns. Rows that do not decode are put aside and never stop the rest; a file
that fails its check is set aside and a new one begun. It keeps bounds on what is history (attempts, operations,
idempotency keys, events, ended lives) and never forgets a life without a confirmed end.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stoker.domain.session import Phase
from stoker.errors import ErrorCode, HostError
from stoker.ids import Generation, Instance, Scope
from stoker.journal import layout, records
from stoker.journal.lives import PHASES, Damage, Reader, write_session
from stoker.journal.retention import DEFAULT_RETENTION, Retention
from stoker.journal.writer import Writer
from stoker.ports.journal import (
    GENERATION_BLOCK,
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


class SqliteJournal:
    """The `Journal` of ``path``, which is made if it is missing. Give it the resolved path of the data folder's file.

    ``set_aside`` is where a damaged file went at the last open; ``damages`` are rows that went to quarantine.
    ``wall`` is asked only when the journal is closed and for the date of a quarantined row.
    """

    def __init__(
        self, path: str, *, retention: Retention = DEFAULT_RETENTION, wall: Callable[[], float] = time.time
    ) -> None:
        self.path = os.path.abspath(path)
        self.set_aside: str | None = None
        self.damages: list[Damage] = []
        self._keep = retention
        self._wall = wall
        self._instance = Instance("")
        self._writer: Writer | None = None

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, instance: Instance, identity: ProcessIdentity, version: str, wall: float) -> Scope:
        if self._writer is not None:
            raise AssertionError("the journal is open already")

        def connect() -> sqlite3.Connection:
            connection, self.set_aside = layout.open_database(self.path, wall)
            return connection

        def register(connection: sqlite3.Connection) -> Scope:
            scope = self._settle_identity(connection)
            connection.execute(
                "INSERT OR REPLACE INTO instances VALUES (?, ?, ?, ?, ?, ?, NULL)",
                (instance, identity.pid, identity.start_time, identity.boot_id, version, wall),
            )
            self._keep.ended_lives(connection)
            return scope

        writer = Writer(connect, self.path)
        writer.start()
        try:
            scope = await writer.call(register)
        except BaseException:
            writer.end()
            raise
        self._writer, self._instance = writer, instance
        return scope

    def _settle_identity(self, connection: sqlite3.Connection) -> Scope:
        """One scope and one highest generation, from the file and the small file beside it: the stronger word wins."""
        folder = os.path.dirname(self.path)
        beside = layout.read_identity(folder)
        inside = dict(connection.execute("SELECT name, value FROM meta").fetchall())
        scope = inside.get("scope")
        if not layout.is_scope(scope):
            scope = beside.scope if beside else layout.new_scope()
        assert isinstance(scope, str)
        known = str(inside.get("next_generation", "1"))
        highest = connection.execute("SELECT coalesce(max(generation), 0) + 1 FROM sessions").fetchone()[0]
        next_generation = max(int(known) if known.isdigit() else 1, highest, beside.next_generation if beside else 1)
        self._write_meta(connection, scope, next_generation)
        return Scope(scope)

    def _write_meta(self, connection: sqlite3.Connection, scope: str, next_generation: int) -> None:
        connection.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [("scope", scope), ("next_generation", str(next_generation))],
        )
        layout.write_identity(os.path.dirname(self.path), layout.Identity(scope, next_generation))

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        ended = self._wall()

        def leave(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE instances SET ended = ? WHERE id = ?", (ended, self._instance))

        try:
            await writer.call(leave)
        finally:
            writer.end()
        await writer.join()

    async def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        if self._writer is None:
            raise HostError(
                ErrorCode.JOURNAL_UNWRITABLE,
                f"The journal {self.path} is not open.",
                remedy="Start the daemon again.",
            )
        return await self._writer.call(act)

    async def _write(self, statement: str, *values: Any) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(statement, values)

        await self._do(write)

    async def _read(self, table: str, decode: Callable[[sqlite3.Row], T], where: str, *values: Any) -> tuple[T, ...]:
        def read(reader: Reader) -> tuple[T, ...]:
            return tuple(reader.rows(table, decode, where, *values)[0])

        return await self._with_reader(read)

    async def _with_reader(self, read: Callable[[Reader], T]) -> T:
        wall = self._wall()

        def act(connection: sqlite3.Connection) -> tuple[T, list[Damage]]:
            reader = Reader(connection, wall)
            return read(reader), reader.damages

        value, damages = await self._do(act)
        self.damages.extend(damages)
        return value

    # -- lives -----------------------------------------------------------------------------------------------------

    async def generation_block(self) -> range:
        def take(connection: sqlite3.Connection) -> range:
            meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
            first = int(meta["next_generation"])
            self._write_meta(connection, meta["scope"], first + GENERATION_BLOCK)
            return range(first, first + GENERATION_BLOCK)

        return await self._do(take)

    async def open_lives(self) -> tuple[OpenLife, ...]:
        return await self._with_reader(Reader.open_lives)

    async def write_session(self, row: SessionRow) -> None:
        if row.phase not in PHASES:
            raise AssertionError(f"{row.phase} is no phase")
        await self._do(lambda connection: write_session(connection, row))

    async def write_phase(self, generation: Generation, phase: str, reason: str | None = None) -> None:
        if phase not in PHASES or phase == Phase.GONE:
            raise AssertionError(f"{phase} is not for write_phase; a life ends with end_session")

        def write(connection: sqlite3.Connection) -> None:
            known = connection.execute("SELECT 1 FROM sessions WHERE generation = ?", (generation,)).fetchone()
            if not known:
                raise missing(self.path, f"session {generation}")
            connection.execute(
                "UPDATE sessions SET phase = ?, reason = coalesce(?, reason) WHERE generation = ? AND phase <> 'gone'",
                (phase, reason, generation),
            )

        await self._do(write)

    async def intend(self, generation: Generation, verb: str, wall: float) -> int:
        def write(connection: sqlite3.Connection) -> int:
            cursor = connection.execute(
                "INSERT INTO acts (generation, instance, verb, intended_at) VALUES (?, ?, ?, ?)",
                (generation, self._instance, verb, wall),
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

        return await self._do(write)

    async def outcome(self, act_id: int, outcome: str, wall: float) -> None:
        def write(connection: sqlite3.Connection) -> None:
            if not connection.execute("SELECT 1 FROM acts WHERE id = ?", (act_id,)).fetchone():
                raise missing(self.path, f"act {act_id}")
            connection.execute(
                "UPDATE acts SET outcome = ?, outcome_at = ? WHERE id = ? AND outcome IS NULL", (outcome, wall, act_id)
            )

        await self._do(write)

    async def write_unit(self, unit: UnitIdentity, state: str, confirmed_by: str | None = None) -> None:
        await self._write(
            "INSERT OR REPLACE INTO units VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            unit.generation, unit.kind, records.encode_identity(unit.guardian), records.encode_identity(unit.main),
            records.encode_members(unit.members), unit.runtime_id, unit.life_dir, state, confirmed_by,
        )  # fmt: skip

    async def write_processes(self, generation: Generation, members: tuple[ProcessIdentity, ...]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM unit_processes WHERE generation = ?", (generation,))
            connection.executemany(
                "INSERT OR IGNORE INTO unit_processes VALUES (?, ?, ?, ?)",
                [(generation, member.pid, member.start_time, member.boot_id) for member in members],
            )

        await self._do(write)

    async def end_session(self, generation: Generation, reason: str, confirmed_by: str, wall: float) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE sessions SET phase = 'gone', reason = ?, ended = ? WHERE generation = ? AND phase <> 'gone'",
                (reason, wall, generation),
            )
            connection.execute(
                "UPDATE units SET state = 'gone', confirmed_by = ? WHERE generation = ?", (confirmed_by, generation)
            )
            self._keep.ended_lives(connection)

        await self._do(write)

    # -- attempts, holds, residue ----------------------------------------------------------------------------------

    async def write_attempt(self, attempt: Attempt) -> None:
        body = records.encode_attempt(attempt)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?)",
                (attempt.generation, attempt.deployment, attempt.replica, body),
            )
            self._keep.attempts(connection, attempt.deployment, attempt.replica)

        await self._do(write)

    async def attempts(self, deployment: str, replica: int | None = None, limit: int = 10) -> tuple[Attempt, ...]:
        where = "WHERE deployment = ? AND replica = coalesce(?, replica) ORDER BY generation DESC LIMIT ?"
        return await self._read("attempts", records.decode_attempt, where, deployment, replica, limit)

    async def write_hold(self, hold: Hold) -> None:
        await self._write(
            "INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            hold.deployment, hold.replica, hold.cause, hold.code, hold.message, hold.failures, hold.until, hold.since,
            hold.trial_s,
        )  # fmt: skip

    async def clear_hold(self, deployment: str, replica: int) -> None:
        await self._write("DELETE FROM holds WHERE deployment = ? AND replica = ?", deployment, replica)

    async def holds(self) -> tuple[Hold, ...]:
        return await self._read("holds", records.decode_hold, "ORDER BY deployment, replica")

    async def write_residue(self, residue: Residue) -> None:
        await self._write(
            "INSERT OR IGNORE INTO residue VALUES (?, ?, ?, ?)",
            residue.generation, residue.what, residue.path, residue.since,
        )  # fmt: skip

    async def clear_residue(self, generation: Generation) -> None:
        await self._write("DELETE FROM residue WHERE generation = ?", generation)

    async def residues(self) -> tuple[Residue, ...]:
        return await self._read("residue", records.decode_residue, "ORDER BY generation, what, path")

    # -- operations, idempotency keys, events ----------------------------------------------------------------------

    async def write_operation(self, row: OperationRow) -> None:
        body = records.to_json(dict(row.body))

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO operations VALUES (?, ?, ?, ?, ?, ?, ?)",
                (row.operation_id, row.kind, row.subject, row.state, body, row.created, row.ended),
            )
            self._keep.operations(connection)

        await self._do(write)

    async def operations(self) -> tuple[OperationRow, ...]:
        return await self._read("operations", records.decode_operation, "ORDER BY created, operation_id")

    async def write_idempotency(self, row: IdempotencyRow) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR REPLACE INTO idempotency_keys VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.caller, row.route, row.key, row.body_digest, row.status, row.answer, row.created,
                    row.operation_id,
                ),
            )  # fmt: skip
            self._keep.idempotency(connection)

        await self._do(write)

    async def idempotency(self, caller: str, route: str, key: str) -> IdempotencyRow | None:
        where = "WHERE caller = ? AND route = ? AND key = ?"
        found = await self._read("idempotency_keys", records.decode_idempotency, where, caller, route, key)
        return found[0] if found else None

    async def write_events(self, events: tuple[Mapping[str, Any], ...]) -> None:
        rows = [(event["id"], records.event_wall(event), records.to_json(dict(event))) for event in events]

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR IGNORE INTO events (id, at, body) VALUES (?, ?, ?)", rows)
            self._keep.events(connection)

        await self._do(write)

    async def events(self, after: str | None, limit: int) -> tuple[Mapping[str, Any], ...]:
        where = "WHERE n > coalesce((SELECT n FROM events WHERE id = ?), 0) ORDER BY n LIMIT ?"
        return await self._read("events", records.decode_event, where, after, limit)


def missing(path: str, what: str) -> HostError:
    return HostError(
        ErrorCode.JOURNAL_UNWRITABLE,
        f"The journal {path} has no row of {what}.",
        remedy="Restart the daemon: it then finds out again what runs.",
    )
