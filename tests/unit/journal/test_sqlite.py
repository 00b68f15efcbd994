"""Durability, damage and bounds of the journal's file: S-83 to S-88, acceptance 14 and 49 of the sessions."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from dataclasses import replace

import anyio
import pytest

from stoker.errors import ErrorCode, HostError, StoreError
from stoker.ids import Generation, Instance
from stoker.journal import layout
from stoker.journal.retention import Retention
from stoker.journal.sqlite import SqliteJournal
from stoker.ports.journal import GENERATION_BLOCK
from stoker.ports.units import ProcessIdentity, UnitIdentity
from stoker.testing.journal_contract import DAEMON, WALL, attempt_row, opened, session_row

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "data" / "journal.sqlite")


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def rows(path, query, *values):
    with sqlite3.connect(path) as connection:
        found = connection.execute(query, values).fetchall()
    connection.close()
    return found


# -- the file ------------------------------------------------------------------------------------------------------


async def test_files_are_private_and_the_log_is_synchronous(path):
    journal = await opened(lambda: SqliteJournal(path))
    await journal.write_session(session_row(1))
    assert mode(os.path.dirname(path)) == 0o700
    assert {name: mode(os.path.join(os.path.dirname(path), name)) for name in os.listdir(os.path.dirname(path))} == {
        "journal.sqlite": 0o600,
        "journal.sqlite-wal": 0o600,
        "journal.sqlite-shm": 0o600,
        "scope": 0o600,
    }
    pragmas = await journal._do(
        lambda c: (c.execute("PRAGMA synchronous").fetchone()[0], c.execute("PRAGMA journal_mode").fetchone()[0])
    )
    assert pragmas == (2, "wal")
    await journal.close()


async def test_wider_modes_of_ours_are_tightened(path):
    await (await opened(lambda: SqliteJournal(path))).close()
    os.chmod(path, 0o644)
    os.chmod(os.path.dirname(path), 0o755)
    await (await opened(lambda: SqliteJournal(path))).close()
    assert (mode(path), mode(os.path.dirname(path))) == (0o600, 0o700)


async def test_a_link_in_the_place_of_the_journal_is_refused_and_its_target_left_alone(path, tmp_path):
    os.makedirs(os.path.dirname(path))
    target = tmp_path / "precious"
    target.write_text("mine")
    os.symlink(target, path)
    with pytest.raises(HostError) as caught:
        await opened(lambda: SqliteJournal(path))
    assert caught.value.code == ErrorCode.JOURNAL_UNWRITABLE
    assert target.read_text() == "mine"


async def test_an_account_that_is_not_the_owner_is_refused(path, monkeypatch):
    await (await opened(lambda: SqliteJournal(path))).close()
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(HostError, match=f"belongs to uid {uid}"):
        await opened(lambda: SqliteJournal(path))


async def test_a_newer_schema_is_refused_and_left_as_it_is(path):
    await (await opened(lambda: SqliteJournal(path))).close()
    newer = layout.newest_schema() + 1
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (str(newer),))
    connection.close()
    with pytest.raises(StoreError, match=f"schema {newer}") as caught:
        await opened(lambda: SqliteJournal(path))
    assert caught.value.code == ErrorCode.STORE_TOO_NEW
    assert rows(path, "SELECT value FROM meta WHERE name = 'schema'") == [(str(newer),)]


async def test_schema_files_are_applied_in_one_transaction(path, tmp_path, monkeypatch):
    await (await opened(lambda: SqliteJournal(path))).close()
    folder = tmp_path / "schema"
    folder.mkdir()
    for name in os.listdir(layout._SCHEMA):
        if name.endswith(".sql"):
            (folder / name).write_text((layout._SCHEMA / name).read_text())
    (folder / "002_next.sql").write_text("CREATE TABLE second (a TEXT) STRICT;\n")
    (folder / "003_broken.sql").write_text("CREATE TABLE third (a TEXT) STRICT;\nALTER TABLE nowhere ADD x TEXT;\n")
    monkeypatch.setattr(layout, "_SCHEMA", folder)
    with pytest.raises(HostError, match="nowhere"):
        await opened(lambda: SqliteJournal(path))
    assert rows(path, "SELECT name FROM sqlite_master WHERE name IN ('second', 'third')") == []
    (folder / "003_broken.sql").unlink()
    await (await opened(lambda: SqliteJournal(path))).close()
    assert rows(path, "SELECT value FROM meta WHERE name = 'schema'") == [("2",)]


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
async def test_a_network_file_system_is_refused_by_name(path, kind, monkeypatch):
    monkeypatch.setattr(layout, "_mounts", lambda: [("/", "ext4"), (os.path.dirname(os.path.dirname(path)), kind)])
    with pytest.raises(HostError, match=kind) as caught:
        await opened(lambda: SqliteJournal(path))
    assert "local disk" in caught.value.remedy
    assert not os.path.exists(path)


def test_the_longest_and_last_mount_decides(monkeypatch):
    mounts = [("/", "ext4"), ("/srv", "nfs"), ("/srv/local", "xfs"), ("/srv/local", "btrfs"), ("/srv/lo", "cifs")]
    monkeypatch.setattr(layout, "_mounts", lambda: mounts)
    found = {folder: layout.file_system_of(folder) for folder in ("/etc", "/srv/x", "/srv/local/x", "/srv/locality")}
    assert found == {"/etc": "ext4", "/srv/x": "nfs", "/srv/local/x": "btrfs", "/srv/locality": "nfs"}


def test_a_mount_line_is_read_with_its_escapes():
    line = r"36 35 98:0 /mnt1 /mnt/my\040disk rw,noatime master:1 - nfs4 server:/x rw"
    assert layout.parse_mount(line) == ("/mnt/my disk", "nfs4")


# -- durability ----------------------------------------------------------------------------------------------------

_WRITER = """
import anyio, sys
from stoker.ids import Generation, Instance
from stoker.journal.sqlite import SqliteJournal
from stoker.testing.journal_contract import DAEMON, session_row

async def one(journal, generation):
    await journal.write_session(session_row(generation))
    act = await journal.intend(Generation(generation), "start", 1.0)
    await journal.outcome(act, "started", 2.0)
    print(generation, act, flush=True)

async def main():
    journal = SqliteJournal(sys.argv[1])
    await journal.open(Instance("child"), DAEMON, "1", 1.0)
    for start in range(1, 1_000_000, 4):
        async with anyio.create_task_group() as group:
            for generation in range(start, start + 4):
                group.start_soon(one, journal, generation)

anyio.run(main)
"""


async def test_kill_9_of_a_writer_loses_no_acknowledged_write(path):
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE, text=True)
        lines = [child.stdout.readline() for _ in range(60)]
        child.kill()
        lines += child.stdout.read().splitlines(keepends=True)
        child.stdout.close()
        child.wait()
        acknowledged = {tuple(map(int, line.split())) for line in lines if line.endswith("\n")}
        assert len(acknowledged) >= 60
        journal = await opened(lambda: SqliteJournal(path))
        lives = await journal.open_lives()
        done = {(life.session.generation, act.act_id) for life in lives for act in life.acts if act.outcome}
        assert acknowledged <= done
        assert not any(life.damaged for life in lives)
        assert await journal.generation_block() == range(len(lives) + 1, len(lives) + 1 + GENERATION_BLOCK)
        await journal.close()
        for name in os.listdir(os.path.dirname(path)):
            os.unlink(os.path.join(os.path.dirname(path), name))


async def test_writes_that_queue_up_share_a_commit_and_keep_their_order(path):
    journal = await opened(lambda: SqliteJournal(path))
    commits = []
    gate = threading.Event()

    def watch(connection):
        connection.set_trace_callback(lambda statement: commits.append(statement) if statement == "COMMIT" else None)

    await journal._do(watch)
    acts = {}

    async def intend(generation):
        acts[generation] = await journal.intend(Generation(generation), "start", WALL)

    async with anyio.create_task_group() as group:
        group.start_soon(journal._do, lambda _: gate.wait(10))
        await anyio.wait_all_tasks_blocked()
        commits.clear()
        for generation in range(1, 101):
            group.start_soon(intend, generation)
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert len(commits) <= 3
    assert sorted(acts, key=acts.get) == list(range(1, 101))
    await journal.close()


async def test_a_cancelled_caller_stops_waiting_and_the_order_stays(path):
    journal = await opened(lambda: SqliteJournal(path))
    gate = threading.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(journal._do, lambda _: gate.wait(10))
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.01) as scope:
            await journal.write_session(session_row(1))
        assert scope.cancelled_caught
        gate.set()
    await journal.write_phase(Generation(1), "preparing")
    assert [life.session.phase for life in await journal.open_lives()] == ["preparing"]
    await journal.close()


async def test_a_failed_write_rejects_its_own_caller_only(path):
    """S-86, with the failing call inside a shared commit."""
    journal = await opened(lambda: SqliteJournal(path))
    gate = threading.Event()
    failures = []

    async def fail():
        try:
            await journal.write_phase(Generation(404), "ready")
        except HostError as exc:
            failures.append(exc.code)

    async with anyio.create_task_group() as group:
        group.start_soon(journal._do, lambda _: gate.wait(10))
        await anyio.wait_all_tasks_blocked()
        for generation in (1, 2):
            group.start_soon(journal.write_session, session_row(generation))
            group.start_soon(fail)
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert failures == [ErrorCode.JOURNAL_UNWRITABLE] * 2
    assert len(await journal.open_lives()) == 2
    await journal.close()


async def test_full_disk_refuses_the_intent_and_works_again_when_there_is_room(path):
    """Acceptance 14: a failed intent is an error of its caller, and nothing of it is left."""
    journal = await opened(lambda: SqliteJournal(path))
    await journal.write_session(session_row(1))
    pages = await journal._do(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
    await journal._do(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    big = replace(attempt_row(1), message="x" * 500_000)
    refused, gate = [], threading.Event()

    async def write(attempt):
        try:
            await journal.write_attempt(attempt)
        except HostError as exc:
            refused.append(exc)

    async with anyio.create_task_group() as group:
        group.start_soon(journal._do, lambda _: gate.wait(10))
        await anyio.wait_all_tasks_blocked()
        group.start_soon(write, big)
        group.start_soon(journal.write_phase, Generation(1), "stopping", "operator")  # stops go on
        await anyio.wait_all_tasks_blocked()
        gate.set()
    (exc,) = refused
    assert exc.code == ErrorCode.JOURNAL_UNWRITABLE
    assert "full" in exc.message
    assert exc.details == {"cause": "SQLITE_FULL"}
    assert [life.session.phase for life in await journal.open_lives()] == ["stopping"]
    await journal._do(lambda c: c.execute("PRAGMA max_page_count = 1073741823").fetchone())
    await journal.write_attempt(big)
    assert await journal.attempts("tiny") == (big,)
    await journal.close()


async def test_nobody_waits_for_ever_when_the_writer_dies(path):
    journal = await opened(lambda: SqliteJournal(path))

    def die(_):
        raise KeyboardInterrupt

    caught = threading.excepthook
    threading.excepthook = lambda _: None
    try:
        with anyio.fail_after(10):
            for act in (die, lambda _: None):
                with pytest.raises(HostError, match="the writer thread ended"):
                    await journal._do(act)
            await journal._writer.join()
    finally:
        threading.excepthook = caught


# -- generations and identity --------------------------------------------------------------------------------------


async def test_a_block_is_stored_before_its_first_number_is_used(path):
    journal = await opened(lambda: SqliteJournal(path))
    block = await journal.generation_block()
    assert rows(path, "SELECT value FROM meta WHERE name = 'next_generation'") == [(str(block.stop),)]
    assert layout.read_identity(os.path.dirname(path)).next_generation == block.stop
    await journal.close()


async def test_a_moved_folder_keeps_its_scope_and_an_older_backup_uses_no_number_twice(path, tmp_path):
    journal = SqliteJournal(path)
    scope = await journal.open(Instance("one"), DAEMON, "1", WALL)
    await journal.close()
    with open(path, "rb") as file:
        backup = file.read()
    journal = await opened(lambda: SqliteJournal(path))
    used = await journal.generation_block()
    await journal.close()
    with open(path, "wb") as file:
        file.write(backup)
    os.rename(os.path.dirname(path), tmp_path / "moved")
    journal = SqliteJournal(str(tmp_path / "moved" / "journal.sqlite"))
    assert await journal.open(Instance("two"), DAEMON, "1", WALL) == scope
    assert (await journal.generation_block()).start >= used.stop
    await journal.close()


# -- damage --------------------------------------------------------------------------------------------------------


async def test_a_corrupt_file_is_set_aside_and_the_scope_and_numbers_go_on(path):
    journal = SqliteJournal(path)
    scope = await journal.open(Instance("one"), DAEMON, "1", WALL)
    used = await journal.generation_block()
    await journal.close()
    rubbish = os.urandom(20_000)
    with open(path, "wb") as file:
        file.write(rubbish)
    for number in (1, 2):
        journal = SqliteJournal(path)
        assert await journal.open(Instance(f"again-{number}"), DAEMON, "1", WALL) == scope
        assert journal.set_aside.startswith(f"{path}.damaged-")
        with open(journal.set_aside, "rb") as file:
            assert file.read() == rubbish
        assert await journal.open_lives() == ()
        assert (await journal.generation_block()).start >= used.stop
        await journal.close()
        with open(path, "wb") as file:
            file.write(rubbish)
    assert len([name for name in os.listdir(os.path.dirname(path)) if "damaged" in name]) == 2


async def test_a_page_of_zeros_in_the_middle_is_found_at_the_start(path):
    journal = await opened(lambda: SqliteJournal(path))
    for generation in range(1, 200):
        await journal.write_session(session_row(generation))
    await journal.close()
    with open(path, "r+b") as file:
        file.seek(4096 * 5)
        file.write(b"\x00" * 4096 * 3)
    journal = await opened(lambda: SqliteJournal(path))
    assert journal.set_aside is not None
    await journal.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sessions SET deployment = CAST(x'ff41' AS TEXT) WHERE generation = 1",
        "UPDATE sessions SET phase = 'reserved!' WHERE generation = 1",
        "UPDATE units SET guardian = '[1,' WHERE generation = 1",
        "UPDATE units SET members = '{}' WHERE generation = 1",
        "UPDATE acts SET verb = CAST(x'ff' AS TEXT) WHERE generation = 1",
        "UPDATE unit_processes SET boot_id = CAST(x'ff' AS TEXT) WHERE generation = 1",
        "DELETE FROM sessions WHERE generation = 1",
    ],
)
async def test_a_damaged_or_missing_row_becomes_a_leftover_that_holds_its_reservation(path, damage):
    """S-87: the other rows are unaffected, and the same is found at every later start until the life is proven gone."""
    journal = await opened(lambda: SqliteJournal(path))
    for generation in (1, 2):
        await journal.write_session(session_row(generation, phase="ready"))
        await journal.intend(Generation(generation), "start", WALL)
        await journal.write_unit(
            UnitIdentity(Generation(generation), "process", DAEMON, DAEMON, (DAEMON,), life_dir="/lives/x"), "running"
        )
        await journal.write_processes(Generation(generation), (DAEMON,))
    await journal.close()
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()
    for start in ("two", "three"):
        journal = await opened(lambda: SqliteJournal(path), start)
        broken, sound = await journal.open_lives()
        assert broken.damaged
        assert broken.session.generation == 1
        assert broken.session.reservation == session_row(1).reservation
        assert broken.session.unit_kind == "process"
        assert not sound.damaged
        assert sound.session == session_row(2, phase="ready")
        assert len(sound.acts) == len(sound.processes) == 1
        assert len(journal.damages) == (1 if start == "two" else 0)
        await journal.close()
    assert all(entry[0] == 1 for entry in rows(path, "SELECT generation FROM quarantine"))
    journal = await opened(lambda: SqliteJournal(path), "four")
    await journal.end_session(Generation(1), "orphaned", "absent", WALL)
    assert [life.session.generation for life in await journal.open_lives()] == [2]
    await journal.close()


async def test_a_damaged_reservation_keeps_what_can_be_read(path):
    journal = await opened(lambda: SqliteJournal(path))
    await journal.write_session(session_row(1))
    await journal.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE reservations SET bytes = -5 WHERE pool = 'ram'")
    connection.close()
    journal = await opened(lambda: SqliteJournal(path))
    (life,) = await journal.open_lives()
    assert life.damaged
    assert life.session.reservation == {"gpu:0": 5_000_000_000}
    assert [(d.source, d.generation) for d in journal.damages] == [("reservations", 1)]
    assert rows(path, "SELECT count(*) FROM reservations") == [(1,)]
    await journal.close()


async def test_damaged_history_is_put_aside_and_the_rest_is_read(path):
    journal = await opened(lambda: SqliteJournal(path))
    for generation in (1, 2, 3):
        await journal.write_attempt(attempt_row(generation))
    await journal.write_events(({"id": "one:1", "at": WALL}, {"id": "one:2", "at": "2026-05-28T20:26:41.000Z"}))
    await journal.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE attempts SET body = '{' WHERE generation = 2")
        connection.execute('UPDATE attempts SET body = \'{"lines":[],"colour":1}\' WHERE generation = 1')
        connection.execute("UPDATE events SET body = '[]' WHERE n = 1")
    connection.close()
    journal = await opened(lambda: SqliteJournal(path))
    assert await journal.attempts("tiny") == (attempt_row(3),)
    assert [event["id"] for event in await journal.events(None, 10)] == ["one:2"]
    assert [damage.source for damage in journal.damages] == ["attempts", "attempts", "events"]
    await journal.close()


# -- bounds --------------------------------------------------------------------------------------------------------


async def test_history_is_bounded_by_rows(path):
    keep = Retention(attempts_rows=3, operations_rows=2, idempotency_rows=2, events_rows=2, ended_rows=2)
    journal = await opened(lambda: SqliteJournal(path, retention=keep))
    for number in range(1, 6):
        await journal.write_attempt(attempt_row(number, deployment=f"d{number}"))
        await journal.write_session(session_row(number))
        await journal.intend(Generation(number), "start", WALL)
        await journal.end_session(Generation(number), "idle", "guardian", WALL)
        await journal.write_events(({"id": f"one:{number}", "at": WALL},))
    tables = {"attempts": 3, "sessions": 2, "reservations": 4, "acts": 2, "events": 2}
    assert {table: rows(path, f"SELECT count(*) FROM {table}")[0][0] for table in tables} == tables
    assert await journal.open_lives() == ()
    await journal.close()


async def test_an_instance_is_registered_with_its_start_and_its_end(path):
    journal = SqliteJournal(path, wall=lambda: WALL + 50)
    await journal.open(Instance("one"), ProcessIdentity(5, 6, "boot"), "1.2", WALL)
    await journal.close()
    await opened(lambda: SqliteJournal(path), "killed")
    found = rows(path, "SELECT id, pid, start_time, boot_id, version, started, ended FROM instances ORDER BY ended")
    assert found[1] == ("one", 5, 6, "boot", "1.2", WALL, WALL + 50)
    assert found[0][0] == "killed"
    assert found[0][-1] is None
