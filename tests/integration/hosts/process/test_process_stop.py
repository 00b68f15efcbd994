"""Stopping a unit, and everything it started: acceptance 15 to 18, 20, 24, 27; S-39 to S-41."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import psutil
import pytest
from process_programs import (
    DIES_BY_SEGV,
    EXITS_7,
    HIDDEN_HELPER,
    IGNORES_TERM,
    PORT_HOLDER,
    RUNS,
    SCOPE,
    SLEEP,
    living,
    make_plan,
    marked,
    running_since,
)
from process_waiting import Start, guardians, until, wait_until

from stoker.hosts.process.procfs import descendants
from stoker.hosts.process.units import ProcessUnits
from stoker.ids import Generation
from stoker.ports.units import (
    Changing,
    Confirmed,
    Exited,
    Kept,
    Lost,
    Prepared,
    Running,
    Started,
    StartFailed,
    Unconfirmed,
    UnconfirmedCause,
    UnitIdentity,
    Unknown,
)
from stoker.testing.units_contract import GREETING

pytestmark = pytest.mark.anyio


async def greeted(units: ProcessUnits, unit: UnitIdentity) -> None:
    async for line in units.logs(unit):
        if line.text == GREETING:
            return
    raise AssertionError("no greeting")


async def helper_of(units: ProcessUnits, unit: UnitIdentity):
    """The one member that is not the main process, once it has become what it wants to be."""
    with anyio.fail_after(5):
        while True:
            usage = await units.usage(unit)
            for member in usage.members if usage else ():
                if member != unit.main and psutil.Process(member.pid).cmdline()[:1] == ["kworker/7:1"]:
                    return member
            await anyio.sleep(0.01)


async def test_an_engine_that_ignores_term_is_killed_after_the_grace_and_confirmed(
    units: ProcessUnits, start: Start
) -> None:
    """Acceptance 15."""
    unit = (await start(1, IGNORES_TERM)).identity
    await greeted(units, unit)
    begun = time.monotonic()
    answer = await units.stop(unit, 0.3)
    assert 0.3 <= time.monotonic() - begun < 2
    assert isinstance(answer, Confirmed)
    assert answer.exit is not None
    assert (answer.exit.signal, answer.exit.by) == (9, "us")
    assert living(unit.main, unit.guardian) == [unit.guardian] or not living(unit.main)


@pytest.mark.parametrize("marker", ["kept", "bare"])
async def test_br_402_a_hidden_helper_is_gone_after_a_normal_stop(
    units: ProcessUnits, start: Start, marker: str
) -> None:
    """Acceptance 16: own session, other name, closed descriptors, deaf to TERM."""
    unit = (await start(1, HIDDEN_HELPER, marker)).identity
    await greeted(units, unit)
    helper = await helper_of(units, unit)
    assert os.getsid(helper.pid) != os.getsid(unit.main.pid)
    answer = await units.stop(unit, 5.0)
    assert isinstance(answer, Confirmed)
    assert answer.by == "guardian"
    assert living(unit.main, helper) == []


async def test_br_402_a_hidden_helper_is_gone_after_kill_of_the_main_process(units: ProcessUnits, start: Start) -> None:
    """Acceptance 16. The unit has not exited before its helper has (S-40)."""
    unit = (await start(1, HIDDEN_HELPER, "bare")).identity
    await greeted(units, unit)
    helper = await helper_of(units, unit)
    os.kill(unit.main.pid, signal.SIGKILL)
    wait_until(lambda: not living(unit.main))
    if living(helper):
        assert await units.inspect(unit) == Running()
        assert isinstance(await units.remove(unit), Kept)
    with anyio.fail_after(10):
        answer = await units.wait(unit)
    assert living(helper) == []
    assert isinstance(answer, Exited)
    assert answer.exit is not None
    assert (answer.exit.signal, answer.exit.by) == (9, "engine")


async def test_kill_at_once_takes_the_helpers_along(units: ProcessUnits, start: Start) -> None:
    unit = (await start(1, HIDDEN_HELPER)).identity
    await greeted(units, unit)
    helper = await helper_of(units, unit)
    begun = time.monotonic()
    assert isinstance(await units.stop(unit, 0.0), Confirmed)
    assert time.monotonic() - begun < 1.0
    assert living(unit.main, helper) == []


async def test_br_402_a_member_that_cannot_be_ended_is_a_named_survivor_until_it_ends(
    anyio_backend: str, tmp_path: Path
) -> None:
    """Acceptance 17: the guardian's signals to the helper are lost, as a kernel wait would make them."""
    program = Path(__file__).with_name("deaf_guardian.py")
    async with ProcessUnits(SCOPE, guardian_program=str(program)) as units:
        plan = make_plan(tmp_path, 1, HIDDEN_HELPER, kill_confirm_s=0.3)
        prepared = await units.prepare(plan)
        assert isinstance(prepared, Prepared)
        started = await units.start(prepared, None)
        assert isinstance(started, Started)
        unit = started.identity
        await greeted(units, unit)
        helper = await helper_of(units, unit)
        for _ in range(2):
            answer = await units.stop(unit, 0.1)
            assert isinstance(answer, Unconfirmed)
            assert answer.cause is UnconfirmedCause.SURVIVORS
            assert [survivor.pid for survivor in answer.survivors] == [helper.pid]
            assert str(helper.pid) in answer.detail
            assert await units.inspect(unit) == Running()
            assert isinstance(await units.remove(unit), Kept)
        os.kill(helper.pid, signal.SIGKILL)
        assert isinstance(await units.wait(unit), Exited)
        assert isinstance(await units.stop(unit, 0.1), Confirmed)


@pytest.mark.parametrize("program", [RUNS, HIDDEN_HELPER], ids=["plain", "helper"])
async def test_a_killed_guardian_takes_its_unit_along_and_no_other(
    units: ProcessUnits, start: Start, program: str
) -> None:
    """Acceptance 18, S-39: the engine by its parent-death signal, the rest by identity."""
    lost, other = (await start(1, program)).identity, (await start(2, RUNS)).identity
    for unit in (lost, other):
        await greeted(units, unit)
    members = (await units.usage(lost)).members
    os.kill(lost.guardian.pid, signal.SIGKILL)
    with anyio.fail_after(5):
        assert await units.wait(lost) == Lost("guardian-lost")
    assert isinstance(await units.inspect(lost), Changing | Exited)
    answer = await units.stop(lost, 5.0)
    assert answer == Confirmed(how="absent", exit=None, by="absent")
    assert living(*members) == []
    assert [pid for pid in psutil.pids() if pid in {one.pid for one in members}] == []  # reaped, too
    assert await units.inspect(lost) == Exited(None)
    assert await units.inspect(other) == Running()
    assert isinstance(await units.stop(other, 5.0), Confirmed)


async def test_a_helper_in_the_middle_of_its_forks_does_not_slip_past_the_burial(
    units: ProcessUnits, start: Start
) -> None:
    """S-39: the guardian dies between two forks and an exec, when every look at the processes is already old."""
    for generation in range(1, 31):
        unit = (await start(generation, HIDDEN_HELPER)).identity
        with anyio.fail_after(5):
            while len(descendants(unit.guardian)) < 2:
                await anyio.lowlevel.checkpoint()
        os.kill(unit.guardian.pid, signal.SIGKILL)
        assert isinstance(await units.stop(unit, 1.0), Confirmed)
        assert marked(generation) == []


async def test_a_frozen_guardian_is_no_answer_and_never_a_confirmation(
    units: ProcessUnits, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.hosts.process.units.STOP_EXTRA_S", 0.2)
    unit = (await start(1, RUNS)).identity
    os.kill(unit.guardian.pid, signal.SIGSTOP)
    try:
        answer = await units.stop(unit, 0.1)
    finally:
        os.kill(unit.guardian.pid, signal.SIGCONT)
    assert isinstance(answer, Unconfirmed)
    assert answer.cause is UnconfirmedCause.NO_ANSWER
    assert isinstance(await units.wait(unit), Exited)


async def test_a_stranger_the_user_runs_is_never_signalled(units: ProcessUnits, start: Start) -> None:
    """Acceptance 20: same program, another scope's marker, and a child of ours that is not a unit."""
    environment = {**os.environ, "STOKER_UNIT": "ffffffff:1"}
    strangers = [
        subprocess.Popen([sys.executable, "-c", SLEEP], env=environment),
        subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True),
    ]
    try:
        identities = [running_since(stranger.pid) for stranger in strangers]
        lost, stopped = (await start(1, HIDDEN_HELPER)).identity, (await start(2, RUNS)).identity
        os.kill(lost.guardian.pid, signal.SIGKILL)
        await units.wait(lost)
        await units.stop(lost, 1.0)
        await units.stop(stopped, 0.0)
        assert living(*identities) == identities
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.wait()


@pytest.mark.parametrize(
    ("program", "code", "number"), [(EXITS_7, 7, None), (DIES_BY_SEGV, None, 11)], ids=["exits", "segv"]
)
async def test_an_exit_during_the_load_is_told_at_once_with_its_lines_and_the_next_life_starts_fresh(
    units: ProcessUnits, start: Start, program: str, code: int | None, number: int | None
) -> None:
    """Acceptance 24, S-109."""
    unit = (await start(1, program)).identity
    with anyio.fail_after(2):
        answer = await units.wait(unit)
    assert isinstance(answer, Exited)
    assert answer.exit is not None
    assert (answer.exit.code, answer.exit.signal, answer.exit.by) == (code, number, "engine")
    assert [line.text async for line in units.logs(unit)] == [GREETING]
    again = (await start(2, RUNS)).identity
    await greeted(units, again)
    await units.stop(again, 1.0)


async def test_a_holder_of_the_port_that_left_its_parent_ends_with_the_unit(units: ProcessUnits, start: Start) -> None:
    started = await start(1, PORT_HOLDER)
    await greeted(units, started.identity)
    assert await units.owns_listener(started.identity, started.endpoint) is True
    assert isinstance(await units.stop(started.identity, 1.0), Confirmed)
    assert await units.owns_listener(started.identity, started.endpoint) is None


async def test_a_start_that_is_cancelled_leaves_nothing(
    anyio_backend: str, units: ProcessUnits, tmp_path: Path
) -> None:
    prepared = await units.prepare(make_plan(tmp_path, 1, RUNS))
    assert isinstance(prepared, Prepared)
    for _ in range(10):
        with anyio.move_on_after(0.002) as limit:
            await units.start(prepared, None)
        if limit.cancelled_caught:
            await until(lambda: not marked(1))
        unit = UnitIdentity(prepared.plan.generation, "process", life_dir=prepared.plan.life_dir)
        assert isinstance(await units.stop(unit, 0.0), Confirmed)


async def test_a_dead_spare_is_replaced_without_anybody_noticing(units: ProcessUnits, start: Start) -> None:
    await until(guardians)
    spares = [running_since(pid) for pid in guardians()]
    for spare in spares:
        os.kill(spare.pid, signal.SIGKILL)
    wait_until(lambda: not living(*spares))
    await start(1, RUNS)


async def test_a_machine_that_starts_no_process_fails_the_start_and_nothing_else(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no process now")

    async with ProcessUnits(SCOPE) as units:
        await until(guardians)
        prepared = await units.prepare(make_plan(tmp_path, 1, RUNS))
        assert isinstance(prepared, Prepared)
        first = await units.start(prepared, None)
        assert isinstance(first, Started)
        await until(lambda: len(guardians()) == 2)
        with monkeypatch.context() as patched:
            patched.setattr("stoker.hosts.process.guardians.subprocess.Popen", refuse)
            spare = await units.start(Prepared(make_plan(tmp_path, 2, RUNS)), None)
            assert isinstance(spare, StartFailed)  # its life directory was never written
            failed = await units.start(Prepared(make_plan(tmp_path, 3, RUNS)), None)
            assert isinstance(failed, StartFailed)
            assert (failed.kind, failed.may_exist) == ("host-out-of-memory", False)
        assert await units.inspect(first.identity) == Running()
        prepared = await units.prepare(make_plan(tmp_path, 4, RUNS))
        assert isinstance(prepared, Prepared)
        assert isinstance(await units.start(prepared, None), Started)


@pytest.mark.parametrize("call", ["stop", "inspect", "survey"])
async def test_a_proc_that_cannot_be_listed_is_doubt_and_never_an_exception(
    units: ProcessUnits, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("stoker.hosts.process.procfs.os.listdir", refuse)
    unit = UnitIdentity(Generation(1), "process")
    match call:
        case "stop":
            answer = await units.stop(unit, 0.0)
            assert isinstance(answer, Unconfirmed)
            assert answer.cause is UnconfirmedCause.UNKNOWN_STATE
        case "inspect":
            assert isinstance(await units.inspect(unit), Unknown)
        case "survey":
            assert await units.survey(SCOPE) == ()
    monkeypatch.undo()


async def test_leaving_the_context_ends_what_still_runs(anyio_backend: str, tmp_path: Path) -> None:
    async with ProcessUnits(SCOPE) as units:
        prepared = await units.prepare(make_plan(tmp_path, 1, IGNORES_TERM, orphan_grace_s=0.2))
        assert isinstance(prepared, Prepared)
        started = await units.start(prepared, None)
        assert isinstance(started, Started)
        await greeted(units, started.identity)
    assert living(started.identity.main) == []


async def test_a_hundred_starts_leave_no_descriptor_and_no_process(units: ProcessUnits, tmp_path: Path) -> None:
    """Acceptance 27."""
    counts = []
    for generation in range(1, 101):
        prepared = await units.prepare(make_plan(tmp_path, generation, "", argv=("/bin/sleep", "60")))
        assert isinstance(prepared, Prepared)
        started = await units.start(prepared, None)
        assert isinstance(started, Started)
        assert isinstance(await units.stop(started.identity, 1.0), Confirmed)
        await units.remove(started.identity)
        if generation in (10, 100):
            await until(lambda: len(guardians()) == 1)
            counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[1] <= counts[0]
    assert marked() == []
    assert os.listdir(tmp_path / "lives") == []
