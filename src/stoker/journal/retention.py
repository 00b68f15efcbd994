"""How much history the journal keeps (S-23, C-9, C-10). Ages count back from the newest row, so no clock is needed.

What is not history is never touched: open lives and their acts, operations that have not ended, holds, residue.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """Rows and seconds. ``ended_lives`` are kept for questions like "what became of generation 41"."""

    attempts_per_replica: int = 10
    attempts_rows: int = 500
    operations_rows: int = 1000
    operations_s: float = 7 * DAY_S
    idempotency_rows: int = 10_000
    idempotency_s: float = DAY_S
    events_rows: int = 100_000
    events_s: float = 7 * DAY_S
    ended_rows: int = 2000

    def attempts(self, connection: sqlite3.Connection, deployment: str, replica: int) -> None:
        connection.execute(
            """DELETE FROM attempts WHERE deployment = ?1 AND replica = ?2 AND generation <= (
                 SELECT generation FROM attempts WHERE deployment = ?1 AND replica = ?2
                 ORDER BY generation DESC LIMIT 1 OFFSET ?3)""",
            (deployment, replica, self.attempts_per_replica),
        )
        connection.execute(
            """DELETE FROM attempts WHERE generation <= (
                 SELECT generation FROM attempts ORDER BY generation DESC LIMIT 1 OFFSET ?)""",
            (self.attempts_rows,),
        )

    def operations(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            """DELETE FROM operations WHERE ended IS NOT NULL AND (
                 ended < (SELECT max(ended) FROM operations) - ?
                 OR operation_id IN (SELECT operation_id FROM operations WHERE ended IS NOT NULL
                                     ORDER BY ended DESC, operation_id DESC LIMIT -1 OFFSET ?))""",
            (self.operations_s, self.operations_rows),
        )

    def idempotency(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            """DELETE FROM idempotency_keys WHERE created < (SELECT max(created) FROM idempotency_keys) - ?
                 OR rowid IN (SELECT rowid FROM idempotency_keys ORDER BY created DESC, rowid DESC
                              LIMIT -1 OFFSET ?)""",
            (self.idempotency_s, self.idempotency_rows),
        )

    def events(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM events WHERE n <= (SELECT max(n) FROM events) - ?",
            (self.events_rows,),
        )
        connection.execute("DELETE FROM events WHERE at < (SELECT max(at) FROM events) - ?", (self.events_s,))

    def ended_lives(self, connection: sqlite3.Connection) -> None:
        """Forget the oldest ended lives with all that hangs on them."""
        old = connection.execute(
            "SELECT generation FROM sessions WHERE phase = 'gone' ORDER BY generation DESC LIMIT -1 OFFSET ?",
            (self.ended_rows,),
        ).fetchall()
        for table in ("sessions", "reservations", "units", "unit_processes", "acts") if old else ():
            connection.executemany(f"DELETE FROM {table} WHERE generation = ?", [(row[0],) for row in old])  # noqa: S608


DEFAULT_RETENTION = Retention()
