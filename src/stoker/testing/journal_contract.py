"""The contract of a `Journal`, as checks that any implementation must pass.

Each check takes ``make``, which gives a journal over the same durable medium each time it is called: the second one
is what the next daemon sees, whether or not the first was closed. Run every one of `CHECKS` with a fresh medium.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from stoker.errors import ErrorCode, HostError
from stoker.ids import Generation, Instance
from stoker.ports.journal import (
    GENERATION_BLOCK,
    Attempt,
    Hold,
    IdempotencyRow,
    Journal,
    OperationRow,
    Residue,
    SessionRow,
)
from stoker.ports.units import ProcessIdentity, UnitIdentity

Make = Callable[[], Journal]
Check = Callable[[Make], Awaitable[None]]

WALL = 1_780_000_000.0
DAY_S = 86_400.0
DAEMON = ProcessIdentity(4242, 77, "boot-1")


def session_row(generation: int, *, replica: int = 0, phase: str = "reserved") -> SessionRow:
    return SessionRow(
        generation=Generation(generation), deployment="tiny", replica=replica, model="sha256:aa", engine="llama-cpp",
        installation="llama-cpp-1", unit_kind="process", load_key="key", phase=phase,
        reservation={"gpu:0": 5_000_000_000, "ram": 250_000_000}, life_dir=f"/lives/{generation}", created=WALL,
        instance="one",
    )  # fmt: skip


def attempt_row(generation: int, *, deployment: str = "tiny", replica: int = 0) -> Attempt:
    return Attempt(
        Generation(generation), deployment, replica, "failed", code="device-out-of-memory", reason="out-of-memory",
        message="It needed 5 bytes.", numbers={"needed_bytes": 5}, exit={"code": 1}, stages_ms={"starting-unit": 12},
        peak_bytes=7, lines=("first", "\udcff broken"), started=WALL, ended=WALL + 1,
    )  # fmt: skip


async def opened(make: Make, instance: str = "one") -> Journal:
    journal = make()
    await journal.open(Instance(instance), DAEMON, "1.0", WALL)
    return journal


async def scope_is_kept(make: Make) -> None:
    first = make()
    scope = await first.open(Instance("one"), DAEMON, "1.0", WALL)
    assert len(scope) == 8, scope
    await first.close()
    second = make()
    assert await second.open(Instance("two"), DAEMON, "1.1", WALL + 5) == scope
    await second.close()


async def generations_never_repeat(make: Make) -> None:
    journal = await opened(make)
    blocks = [await journal.generation_block(), await journal.generation_block()]
    journal = await opened(make, "two")  # the first was killed
    blocks.append(await journal.generation_block())
    await journal.close()
    numbers = [number for block in blocks for number in block]
    assert len(numbers) == 3 * GENERATION_BLOCK
    assert numbers == sorted(set(numbers))
    assert numbers[0] >= 1


async def a_life_survives_a_kill_with_all_that_is_known_of_it(make: Make) -> None:
    journal = await opened(make)
    guardian, main = ProcessIdentity(10, 100, "boot-1"), ProcessIdentity(11, 101, "boot-1")
    unit = UnitIdentity(Generation(7), "process", guardian, main, (main,), life_dir="/lives/7")
    await journal.write_session(session_row(7))
    act_id = await journal.intend(Generation(7), "start", WALL)
    await journal.write_unit(unit, "running")
    await journal.write_processes(Generation(7), (main, guardian))
    await journal.write_processes(Generation(7), (main,))
    await journal.outcome(act_id, "started", WALL + 1)
    await journal.write_phase(Generation(7), "initializing")
    stop = await journal.intend(Generation(7), "stop", WALL + 2)
    journal = await opened(make, "two")
    (life,) = await journal.open_lives()
    assert life.session == replace(session_row(7), phase="initializing")
    assert life.unit == unit
    assert [(a.act_id, a.verb, a.outcome, a.instance) for a in life.acts] == [
        (act_id, "start", "started", "one"),
        (stop, "stop", None, "one"),
    ]
    assert life.processes == (main,)
    assert not life.damaged
    await journal.close()


async def an_ended_life_stays_ended(make: Make) -> None:
    journal = await opened(make)
    for generation in (1, 2):
        await journal.write_session(session_row(generation))
    await journal.end_session(Generation(1), "idle", "guardian", WALL + 3)
    await journal.end_session(Generation(1), "crashed", "absent", WALL + 4)
    await journal.write_phase(Generation(1), "ready")
    await journal.write_session(session_row(1))
    assert [life.session.generation for life in await journal.open_lives()] == [2]
    await journal.end_session(Generation(99), "orphaned", "absent", WALL)
    await journal.close()


async def the_first_outcome_stays(make: Make) -> None:
    journal = await opened(make)
    await journal.write_session(session_row(1))
    act_id = await journal.intend(Generation(1), "stop", WALL)
    await journal.outcome(act_id, "confirmed", WALL + 1)
    await journal.outcome(act_id, "unconfirmed", WALL + 2)
    (life,) = await journal.open_lives()
    assert [(act.outcome, act.outcome_at) for act in life.acts] == [("confirmed", WALL + 1)]
    await journal.close()


async def a_write_about_nothing_is_refused(make: Make) -> None:
    journal = await opened(make)
    assert await _code(journal.write_phase(Generation(5), "ready")) == ErrorCode.JOURNAL_UNWRITABLE
    assert await _code(journal.outcome(123, "confirmed", WALL)) == ErrorCode.JOURNAL_UNWRITABLE
    await journal.write_session(session_row(1))
    assert len(await journal.open_lives()) == 1
    await journal.close()


async def a_closed_journal_refuses(make: Make) -> None:
    journal = await opened(make)
    await journal.close()
    await journal.close()
    assert await _code(journal.intend(Generation(1), "start", WALL)) == ErrorCode.JOURNAL_UNWRITABLE


async def attempts_are_bounded_and_newest_first(make: Make) -> None:
    journal = await opened(make)
    for generation in range(1, 15):
        await journal.write_attempt(attempt_row(generation))
    await journal.write_attempt(attempt_row(20, replica=1))
    await journal.write_attempt(replace(attempt_row(20, replica=1), outcome="ready"))
    journal = await opened(make, "two")
    assert [a.generation for a in await journal.attempts("tiny", 0)] == list(range(14, 4, -1))
    assert [a.generation for a in await journal.attempts("tiny", limit=2)] == [20, 14]
    assert [a.outcome for a in await journal.attempts("tiny", 1)] == ["ready"]
    assert (await journal.attempts("tiny", 0, limit=1)) == (attempt_row(14),)
    assert await journal.attempts("other") == ()
    await journal.close()


async def an_attempt_keeps_the_end_of_a_long_log(make: Make) -> None:
    journal = await opened(make)
    await journal.write_attempt(replace(attempt_row(1), lines=tuple(f"line {n}" for n in range(1000))))
    await journal.write_attempt(replace(attempt_row(2), lines=("x" * 40_000, "y" * 40_000)))
    newer, older = await journal.attempts("tiny")
    assert older.lines[0] == "line 800"
    assert older.lines[-1] == "line 999"
    assert newer.lines == ("y" * 40_000,)
    await journal.close()


async def holds_and_residue_are_kept_until_cleared(make: Make) -> None:
    journal = await opened(make)
    hold = Hold("tiny", 0, "crash-loop", "crash-loop-held", "Five crashes.", 5, None, since=WALL)
    await journal.write_hold(hold)
    await journal.write_hold(replace(hold, failures=6, until=WALL + 60))
    await journal.write_hold(replace(hold, replica=1))
    await journal.clear_hold("tiny", 1)
    residue = Residue(Generation(3), "folder", "/lives/3", WALL)
    await journal.write_residue(residue)
    await journal.write_residue(replace(residue, since=WALL + 9))
    await journal.write_residue(replace(residue, generation=Generation(4)))
    await journal.clear_residue(Generation(4))
    journal = await opened(make, "two")
    assert await journal.holds() == (replace(hold, failures=6, until=WALL + 60),)
    assert await journal.residues() == (residue,)
    await journal.close()


async def operations_that_have_not_ended_are_never_forgotten(make: Make) -> None:
    journal = await opened(make)
    running = OperationRow("op-1", "load", "tiny", "running", {"stage": "preparing"}, WALL - 30 * DAY_S)
    old = OperationRow("op-2", "pull", "x", "succeeded", {}, WALL - 9 * DAY_S, WALL - 8 * DAY_S)
    for row in (running, old, replace(old, operation_id="op-3", created=WALL, ended=WALL)):
        await journal.write_operation(row)
    assert [row.operation_id for row in await journal.operations()] == ["op-1", "op-3"]
    await journal.write_operation(replace(running, state="failed", ended=WALL, body={"error": {"code": "interrupted"}}))
    journal = await opened(make, "two")
    assert [(row.operation_id, row.state) for row in await journal.operations()] == [
        ("op-1", "failed"),
        ("op-3", "succeeded"),
    ]
    await journal.close()


async def idempotency_keys_last_a_day(make: Make) -> None:
    journal = await opened(make)
    row = IdempotencyRow("key-1", "POST /x", "k", "digest", 202, b'{"a":1}\xff', WALL - 2 * DAY_S, "op-1")
    await journal.write_idempotency(row)
    assert await journal.idempotency("key-1", "POST /x", "k") == row
    assert await journal.idempotency("key-2", "POST /x", "k") is None
    await journal.write_idempotency(replace(row, key="later", created=WALL))
    journal = await opened(make, "two")
    assert await journal.idempotency("key-1", "POST /x", "k") is None
    assert await journal.idempotency("key-1", "POST /x", "later") == replace(row, key="later", created=WALL)
    await journal.close()


async def events_are_read_in_order_and_forgotten_by_age(make: Make) -> None:
    journal = await opened(make)
    old = {"id": "one:1", "at": WALL - 8 * DAY_S, "event": "daemon.started"}
    events = tuple({"id": f"one:{n}", "at": WALL + n, "event": "pool.changed", "n": n} for n in range(2, 6))
    await journal.write_events((old,))
    await journal.write_events(events)
    await journal.write_events(events[:1])  # written again after a doubtful answer
    await journal.write_events(())
    journal = await opened(make, "two")
    assert await journal.events(None, 10) == events
    assert await journal.events("one:3", 1) == (events[2],)
    assert await journal.events("one:5", 10) == ()
    assert await journal.events("lost:1", 2) == events[:2]
    await journal.close()


async def _code(call: Awaitable[object]) -> ErrorCode | None:
    try:
        await call
    except HostError as exc:
        return exc.code
    return None


CHECKS: tuple[Check, ...] = (
    scope_is_kept,
    generations_never_repeat,
    a_life_survives_a_kill_with_all_that_is_known_of_it,
    an_ended_life_stays_ended,
    the_first_outcome_stays,
    a_write_about_nothing_is_refused,
    a_closed_journal_refuses,
    attempts_are_bounded_and_newest_first,
    an_attempt_keeps_the_end_of_a_long_log,
    holds_and_residue_are_kept_until_cleared,
    operations_that_have_not_ended_are_never_forgotten,
    idempotency_keys_last_a_day,
    events_are_read_in_order_and_forgotten_by_age,
)
