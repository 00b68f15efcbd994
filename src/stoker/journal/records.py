"""Rows and records: how what the journal keeps is written down and read back (S-84, S-87).

Reading is strict. What was not written by `encode_*` as it stands raises `UndecodableError`; nothing is guessed here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from stoker.ids import Generation
from stoker.ports.journal import ActRow, Attempt, Hold, IdempotencyRow, OperationRow, Residue, SessionRow
from stoker.ports.units import ProcessIdentity, UnitIdentity

ATTEMPT_LINES = 200
ATTEMPT_LINE_BYTES = 64 * 1024


class UndecodableError(ValueError):
    """A row that says something no version of this code has written."""


def text_or_bytes(raw: bytes) -> str | bytes:
    """Text of a column; damaged text comes back as bytes, so that one bad column never stops the reading of a table."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def to_json(value: Any) -> str:
    # Escaped, so that half surrogates from an engine's broken output stay writable.
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _text(row: sqlite3.Row, name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise UndecodableError(f"{name} is not text")
    return value


def _maybe_text(row: sqlite3.Row, name: str) -> str | None:
    return None if row[name] is None else _text(row, name)


def _integer(row: sqlite3.Row, name: str) -> int:
    value = row[name]
    if not isinstance(value, int):
        raise UndecodableError(f"{name} is not an integer")
    return value


def _real(row: sqlite3.Row, name: str) -> float:
    value = row[name]
    if not isinstance(value, int | float):
        raise UndecodableError(f"{name} is not a number")
    return float(value)


def _maybe_real(row: sqlite3.Row, name: str) -> float | None:
    return None if row[name] is None else _real(row, name)


def _mapping(row: sqlite3.Row, name: str) -> dict[str, Any]:
    try:
        value = json.loads(_text(row, name))
    except json.JSONDecodeError as exc:
        raise UndecodableError(f"{name} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise UndecodableError(f"{name} is not an object")
    return value


# -- lives ---------------------------------------------------------------------------------------------------------


def decode_session(row: sqlite3.Row, reservation: Mapping[str, int], phases: frozenset[str]) -> SessionRow:
    phase = _text(row, "phase")
    if phase not in phases:
        raise UndecodableError(f"phase {phase!r} is unknown")
    return SessionRow(
        generation=Generation(_integer(row, "generation")), deployment=_text(row, "deployment"),
        replica=_integer(row, "replica"), model=_text(row, "model"), engine=_text(row, "engine"),
        installation=_text(row, "installation"), unit_kind=_text(row, "unit_kind"), load_key=_text(row, "load_key"),
        phase=phase, reservation=dict(reservation), life_dir=_text(row, "life_dir"),
        reason=_maybe_text(row, "reason"), created=_real(row, "created"), ended=_maybe_real(row, "ended"),
        instance=_text(row, "instance"),
    )  # fmt: skip


def decode_reservation(row: sqlite3.Row) -> tuple[str, int]:
    pool, bytes_ = _text(row, "pool"), _integer(row, "bytes")
    if bytes_ < 0:
        raise UndecodableError(f"{bytes_} bytes of pool {pool}")
    return pool, bytes_


def encode_identity(identity: ProcessIdentity | None) -> str | None:
    return None if identity is None else to_json([identity.pid, identity.start_time, identity.boot_id])


def _identity(value: Any) -> ProcessIdentity:
    match value:
        case [int(pid), int(start_time), str(boot_id)]:
            return ProcessIdentity(pid, start_time, boot_id)
        case _:
            raise UndecodableError(f"{value!r} is no process identity")


def _loads(row: sqlite3.Row, name: str) -> Any:
    try:
        return json.loads(_text(row, name))
    except json.JSONDecodeError as exc:
        raise UndecodableError(f"{name} is not JSON: {exc}") from exc


def encode_members(members: tuple[ProcessIdentity, ...]) -> str:
    return to_json([[m.pid, m.start_time, m.boot_id] for m in members])


def decode_unit(row: sqlite3.Row) -> UnitIdentity:
    members = _loads(row, "members")
    if not isinstance(members, list):
        raise UndecodableError("members is not a list")
    return UnitIdentity(
        generation=Generation(_integer(row, "generation")), kind=_text(row, "kind"),
        guardian=None if row["guardian"] is None else _identity(_loads(row, "guardian")),
        main=None if row["main"] is None else _identity(_loads(row, "main")),
        members=tuple(map(_identity, members)), runtime_id=_maybe_text(row, "runtime_id"),
        life_dir=_maybe_text(row, "life_dir"),
    )  # fmt: skip


def decode_process(row: sqlite3.Row) -> ProcessIdentity:
    return ProcessIdentity(_integer(row, "pid"), _integer(row, "start_time"), _text(row, "boot_id"))


def decode_act(row: sqlite3.Row) -> ActRow:
    return ActRow(
        act_id=_integer(row, "id"), generation=Generation(_integer(row, "generation")), verb=_text(row, "verb"),
        intended_at=_real(row, "intended_at"), outcome=_maybe_text(row, "outcome"),
        outcome_at=_maybe_real(row, "outcome_at"), instance=_text(row, "instance"),
    )  # fmt: skip


# -- the rest ------------------------------------------------------------------------------------------------------


def clip_lines(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The last 200 lines, at most 64 KiB of them (S-23)."""
    kept: list[str] = []
    room = ATTEMPT_LINE_BYTES
    for line in reversed(lines[-ATTEMPT_LINES:]):
        room -= len(line.encode(errors="surrogatepass")) + 1
        if room < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))


def encode_attempt(attempt: Attempt) -> str:
    return to_json(asdict(attempt) | {"lines": list(clip_lines(attempt.lines))})


def decode_attempt(row: sqlite3.Row) -> Attempt:
    body = _mapping(row, "body")
    try:
        return Attempt(**body | {"lines": tuple(body["lines"]), "generation": Generation(_integer(row, "generation"))})
    except (TypeError, KeyError) as exc:
        raise UndecodableError(f"body is no attempt: {exc}") from exc


def decode_hold(row: sqlite3.Row) -> Hold:
    return Hold(
        deployment=_text(row, "deployment"), replica=_integer(row, "replica"), cause=_text(row, "cause"),
        code=_text(row, "code"), message=_text(row, "message"), failures=_integer(row, "failures"),
        until=_maybe_real(row, "until"), since=_real(row, "since"), trial_s=_real(row, "trial_s"),
    )  # fmt: skip


def decode_residue(row: sqlite3.Row) -> Residue:
    return Residue(Generation(_integer(row, "generation")), _text(row, "what"), _text(row, "path"), _real(row, "since"))


def decode_operation(row: sqlite3.Row) -> OperationRow:
    return OperationRow(
        operation_id=_text(row, "operation_id"), kind=_text(row, "kind"), subject=_text(row, "subject"),
        state=_text(row, "state"), body=_mapping(row, "body"), created=_real(row, "created"),
        ended=_maybe_real(row, "ended"),
    )  # fmt: skip


def decode_idempotency(row: sqlite3.Row) -> IdempotencyRow:
    answer = row["answer"]
    if not isinstance(answer, bytes):
        raise UndecodableError("answer is not bytes")
    return IdempotencyRow(
        caller=_text(row, "caller"), route=_text(row, "route"), key=_text(row, "key"),
        body_digest=_text(row, "body_digest"), status=_integer(row, "status"), answer=answer,
        created=_real(row, "created"), operation_id=_maybe_text(row, "operation_id"),
    )  # fmt: skip


def decode_event(row: sqlite3.Row) -> Mapping[str, Any]:
    return _mapping(row, "body")


def event_wall(event: Mapping[str, Any]) -> float:
    """Seconds since the epoch of an event's ``at``, which is a number inside and RFC 3339 on the wire."""
    at = event["at"]
    return datetime.fromisoformat(at).timestamp() if isinstance(at, str) else float(at)
