"""Reading lives that are not over, whatever state their rows are in (S-87).

A generation that left any trace and no confirmed end is an open life. If its session row is missing or does not
decode, the original goes to quarantine and what can be read is put in its place, marked damaged: the reservation
stands in a table of its own and is held until somebody proves the life gone. Runs inside one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from stoker.domain.session import Phase
from stoker.ids import Generation
from stoker.journal import records
from stoker.journal.records import UndecodableError
from stoker.ports.journal import OpenLife, SessionRow
from stoker.ports.units import UnitIdentity

T = TypeVar("T")

PHASES = frozenset(phase.value for phase in Phase)
_SESSION_TEXTS = (
    "deployment", "model", "engine", "installation", "unit_kind", "load_key", "phase", "life_dir", "instance",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Damage:
    """One row that did not decode: where it stood, whose it was, and why it was put aside."""

    source: str
    generation: Generation | None
    why: str


class Reader:
    """Reads rows of one connection and puts the ones that do not decode into quarantine."""

    def __init__(self, connection: sqlite3.Connection, wall: float) -> None:
        self.connection = connection
        self.wall = wall
        self.damages: list[Damage] = []

    def rows(self, table: str, decode: Callable[[sqlite3.Row], T], where: str, *values: Any) -> tuple[list[T], bool]:
        """Decoded rows, and whether all of them decoded. ``where`` may carry an order and a limit."""
        found: list[T] = []
        whole = True
        query = f"SELECT rowid AS row_number, * FROM {table} {where}"  # noqa: S608 - table and where are our own words
        for row in self.connection.execute(query, values).fetchall():
            try:
                found.append(decode(row))
            except UndecodableError as exc:
                whole = False
                self.quarantine(table, row, str(exc))
        return found, whole

    def quarantine(self, table: str, row: sqlite3.Row, why: str) -> None:
        """Copy ``row`` as it stands into quarantine and take it out of its table."""
        names = [name for name in row.keys() if name != "row_number"]  # noqa: SIM118 - a Row iterates over values
        generation = row["generation"] if "generation" in names and isinstance(row["generation"], int) else None
        content = records.to_json({name: _shown(row[name]) for name in names})
        self.connection.execute(
            "INSERT INTO quarantine (source, generation, content, why, at) VALUES (?, ?, ?, ?, ?)",
            (table, generation, content, why, self.wall),
        )
        self.connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (row["row_number"],))  # noqa: S608
        self.damages.append(Damage(table, None if generation is None else Generation(generation), why))

    # -- lives -----------------------------------------------------------------------------------------------------

    def open_lives(self) -> tuple[OpenLife, ...]:
        generations = [
            row[0]
            for row in self.connection.execute(
                """SELECT generation FROM sessions WHERE phase <> 'gone' UNION
                   SELECT generation FROM (
                     SELECT generation FROM units UNION SELECT generation FROM acts
                     UNION SELECT generation FROM reservations
                   ) WHERE generation NOT IN (SELECT generation FROM sessions)
                   ORDER BY 1"""
            )
        ]
        return tuple(map(self._life, generations))

    def _life(self, generation: int) -> OpenLife:
        here = "WHERE generation = ?"
        acts, acts_whole = self.rows("acts", records.decode_act, f"{here} ORDER BY id", generation)
        processes, processes_whole = self.rows("unit_processes", records.decode_process, here, generation)
        units, units_whole = self.rows("units", records.decode_unit, here, generation)
        whole = acts_whole and processes_whole and units_whole
        unit = units[0] if units else None
        session = self._session(generation, unit, is_whole=whole)
        damaged = self.connection.execute("SELECT damaged FROM sessions WHERE generation = ?", (generation,)).fetchone()
        return OpenLife(session, unit, tuple(acts), tuple(processes), damaged=bool(damaged[0]))

    def _session(self, generation: int, unit: UnitIdentity | None, *, is_whole: bool) -> SessionRow:
        held, held_whole = self.rows("reservations", records.decode_reservation, "WHERE generation = ?", generation)
        reservation = dict(held)

        def decode(row: sqlite3.Row) -> SessionRow:
            return records.decode_session(row, reservation, PHASES)

        raw = self.connection.execute("SELECT * FROM sessions WHERE generation = ?", (generation,)).fetchone()
        sessions, _ = self.rows("sessions", decode, "WHERE generation = ?", generation)
        if sessions:
            if not (is_whole and held_whole):
                self.connection.execute("UPDATE sessions SET damaged = 1 WHERE generation = ?", (generation,))
            return sessions[0]
        if raw is None:
            self.damages.append(Damage("sessions", Generation(generation), "its row is missing"))
        session = _rebuilt(generation, raw, unit, reservation)
        write_session(self.connection, session, damaged=True)
        return session


def write_session(connection: sqlite3.Connection, row: SessionRow, *, damaged: bool = False) -> None:
    """Insert or replace; a life that is gone stays as it ended."""
    over = connection.execute(
        "SELECT 1 FROM sessions WHERE generation = ? AND phase = 'gone'", (row.generation,)
    ).fetchone()
    if over:
        return
    connection.execute(
        """INSERT INTO sessions (generation, deployment, replica, model, engine, installation, unit_kind, load_key,
             phase, life_dir, reason, created, ended, instance, damaged)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT (generation) DO UPDATE SET deployment = excluded.deployment, replica = excluded.replica,
             model = excluded.model, engine = excluded.engine, installation = excluded.installation,
             unit_kind = excluded.unit_kind, load_key = excluded.load_key, phase = excluded.phase,
             life_dir = excluded.life_dir, reason = excluded.reason, created = excluded.created,
             ended = excluded.ended, instance = excluded.instance""",
        (
            row.generation, row.deployment, row.replica, row.model, row.engine, row.installation, row.unit_kind,
            row.load_key, row.phase, row.life_dir, row.reason, row.created, row.ended, row.instance, damaged,
        ),
    )  # fmt: skip
    connection.execute("DELETE FROM reservations WHERE generation = ?", (row.generation,))
    connection.executemany(
        "INSERT INTO reservations VALUES (?, ?, ?)",
        [(row.generation, pool, bytes_) for pool, bytes_ in row.reservation.items()],
    )


def _rebuilt(
    generation: int, raw: sqlite3.Row | None, unit: UnitIdentity | None, reservation: dict[str, int]
) -> SessionRow:
    """What can still be said of a life whose row is broken or missing."""
    told: dict[str, Any] = dict.fromkeys(_SESSION_TEXTS, "")
    if raw is not None:
        told |= {name: raw[name] for name in _SESSION_TEXTS if isinstance(raw[name], str)}
    if told["phase"] not in PHASES or told["phase"] == Phase.GONE:
        told["phase"] = Phase.STOP_UNCONFIRMED.value
    if unit is not None:
        told["unit_kind"] = unit.kind
        told["life_dir"] = told["life_dir"] or unit.life_dir or ""
    replica = raw["replica"] if raw is not None and isinstance(raw["replica"], int) else 0
    created = raw["created"] if raw is not None and isinstance(raw["created"], float) else 0.0
    return SessionRow(
        generation=Generation(generation), replica=replica, reservation=reservation, created=created,
        **told | {"unit_kind": told["unit_kind"] or "process"},
    )  # fmt: skip


def _shown(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value
