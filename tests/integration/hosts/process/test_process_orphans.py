"""The daemon is killed, frozen, or gone: acceptance 16, 19, 20, 22 and the process half of S-98; S-38, S-42, S-43."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_programs import RUNS, SCOPE, living, make_plan, marked, running_since
from process_waiting import wait_until

from stoker.domain.reconcile import Action, IdentityVerdict, judge
from stoker.hosts.process import leftovers
from stoker.hosts.process.units import ProcessUnits
from stoker.ids import Generation
from stoker.ports.units import (
    Absent,
    Changing,
    Confirmed,
    Kept,
    Lost,
    Prepared,
    ProcessIdentity,
    Removed,
    Running,
    Started,
    Unconfirmed,
    UnconfirmedCause,
    UnitIdentity,
    Unknown,
)
from stoker.testing.units_contract import GREETING

pytestmark = pytest.mark.anyio
DRIVER = Path(__file__).with_name("process_driver.py")


class Driver:
    """A small daemon in a process of its own."""

    def __init__(self, folder: Path, *starts: str, point: str = "serving") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(folder), point, *starts], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        count = len(starts) if point == "serving" else 0
        self.units = [self._identity(json.loads(self.process.stdout.readline())) for _ in range(count)]

    def _identity(self, told: dict[str, Any]) -> UnitIdentity:
        guardian, main = (ProcessIdentity(**told[role]) for role in ("guardian", "main"))
        return UnitIdentity(told["generation"], "process", guardian, main, (main,), None, told["life_dir"])

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    opened: list[Driver] = []
    yield opened
    for driver in opened:
        driver.close()


def descendants(pid: int) -> list[ProcessIdentity]:
    return [running_since(child.pid) for child in psutil.Process(pid).children(recursive=True)]


@pytest.mark.parametrize("program", ["RUNS", "IGNORES_TERM", "HIDDEN_HELPER"])
async def test_br_402_nothing_survives_the_daemon_by_five_seconds(
    tmp_path: Path, drivers: list[Driver], program: str, units: ProcessUnits
) -> None:
    """K7 to K14 of S-98: plain, deaf to TERM, and with a helper in another session."""
    driver = Driver(tmp_path, f"1:{program}")
    drivers.append(driver)
    everything = descendants(driver.process.pid)
    assert len(everything) >= 3  # unit, its guardian, the spare
    begun = time.monotonic()
    driver.kill()
    wait_until(lambda: not living(*everything), 5.0)
    assert time.monotonic() - begun < 5.0
    unit = driver.units[0]
    assert await units.recover(unit.generation, unit.life_dir) == unit
    finding = await units.inspect_leftover(unit)
    assert judge(finding).action is Action.FORGET
    assert await units.stop(unit, 5.0) == Confirmed(how="absent", exit=None, by="absent")
    assert await units.remove(unit) == Removed()


async def test_a_daemon_killed_as_it_hands_over_the_launch_leaves_nothing(
    tmp_path: Path, drivers: list[Driver], units: ProcessUnits
) -> None:
    """K6: the guardian obeys at any stage, also before exec."""
    for generation in range(1, 6):
        driver = Driver(tmp_path, f"{generation}:IGNORES_TERM", point="told")
        drivers.append(driver)
        driver.process.wait()
        wait_until(lambda: not marked(), 5.0)
        life = make_plan(tmp_path, generation, RUNS).life_dir
        unit = await units.recover(Generation(generation), life)
        finding = await units.inspect_leftover(
            unit or UnitIdentity(Generation(generation), "process", life_dir=life), intent_age_s=6.0, looked_again=1
        )
        assert judge(finding).action in {Action.FORGET, Action.REAP}


async def test_the_next_daemon_waits_for_a_guardian_at_its_orphan_work_and_confirms(
    tmp_path: Path, drivers: list[Driver], units: ProcessUnits
) -> None:
    """R2, then R5."""
    driver = Driver(tmp_path, "1:IGNORES_TERM")
    drivers.append(driver)
    unit = driver.units[0]
    driver.kill()
    assert await units.inspect(unit) == Changing("orphan-work")
    finding = await units.inspect_leftover(unit)
    assert (finding.guardian, judge(finding).action) == (IdentityVerdict.SAME, Action.WAIT)
    assert isinstance(await units.remove(unit), Kept)
    assert await units.stop(unit, 5.0) == Confirmed(how="absent", exit=None, by="absent")
    assert living(unit.guardian, unit.main) == []
    assert await units.wait(unit) == Absent()


async def test_a_frozen_guardian_of_an_earlier_run_is_reaped_with_its_members(
    tmp_path: Path, drivers: list[Driver], units: ProcessUnits
) -> None:
    """R3 with the guardian as a member: the members first, then the guardian."""
    driver = Driver(tmp_path, "1:HIDDEN_HELPER")
    drivers.append(driver)
    unit = driver.units[0]
    everything = [one for one in descendants(driver.process.pid) if one.pid != unit.guardian.pid]
    os.kill(unit.guardian.pid, signal.SIGSTOP)
    driver.kill()
    finding = await units.inspect_leftover(unit, looked_again=1)
    assert judge(finding).action is Action.REAP
    answer = await units.stop(unit, 0.3)
    assert answer == Confirmed(how="absent", exit=None, by="absent")
    assert living(unit.guardian, *[one for one in everything if one in marked()]) == []


async def test_a_life_without_unit_json_is_found_by_its_marker(tmp_path: Path, units: ProcessUnits) -> None:
    """S-43: readable marker, open row. The processes are nobody's children any more."""
    environment = {**os.environ, "STOKER_UNIT": f"{SCOPE}:5"}
    helper = subprocess.Popen([sys.executable, "-c", RUNS], env=environment, stdout=subprocess.DEVNULL)
    identity = running_since(helper.pid)
    wait_until(lambda: marked(5))
    bare = UnitIdentity(Generation(5), "process", life_dir=str(tmp_path / "5"))
    assert [found.pids for found in await units.survey(SCOPE)] == [(helper.pid,)]
    assert await units.inspect(bare) == Running()
    finding = await units.inspect_leftover(bare, intent_age_s=9.0)
    assert judge(finding).action is Action.REAP
    assert isinstance(await units.stop(bare, 1.0), Confirmed)
    assert living(identity) == []
    assert helper.wait() is not None
    assert await units.inspect(replace(bare, generation=Generation(6))) == Absent()


@pytest.mark.parametrize("wrong", ["start time", "boot"])
async def test_any_verdict_but_same_is_signalled_by_nothing(units: ProcessUnits, wrong: str) -> None:
    """Acceptance 19: a recorded pid that now belongs to somebody else."""
    stranger = subprocess.Popen([sys.executable, "-c", RUNS], stdout=subprocess.DEVNULL)
    try:
        true = running_since(stranger.pid)
        false = replace(true, start_time=true.start_time - 1) if wrong == "start time" else replace(true, boot_id="x")
        unit = UnitIdentity(Generation(1), "process", guardian=false, main=false, members=(false,))
        assert judge(await units.inspect_leftover(unit)).action is Action.FORGET
        assert await units.inspect(unit) == Absent()
        assert await units.stop(unit, 0.2) == Confirmed(how="absent", exit=None, by="absent")
        assert living(true) == [true]
    finally:
        stranger.kill()
        stranger.wait()


async def test_an_unreadable_member_counts_as_alive_and_is_never_signalled(
    units: ProcessUnits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acceptance 19, R4."""
    monkeypatch.setattr(leftovers, "verdict", lambda _: IdentityVerdict.UNREADABLE)
    monkeypatch.setattr("stoker.hosts.process.units.KILL_CONFIRM_S", 0.2)
    stranger = subprocess.Popen([sys.executable, "-c", RUNS], stdout=subprocess.DEVNULL)
    try:
        main = running_since(stranger.pid)
        unit = UnitIdentity(Generation(1), "process", main=main)
        assert judge(await units.inspect_leftover(unit)).action is Action.REPORT
        assert await units.inspect(unit) == Unknown("identity-unreadable")
        assert await units.wait(unit) == Lost("identity-unreadable")
        answer = await units.stop(unit, 0.1)
        assert isinstance(answer, Unconfirmed)
        assert answer.cause is UnconfirmedCause.IDENTITY_UNREADABLE
        assert [survivor.pid for survivor in answer.survivors] == [main.pid]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_two_daemons_units_do_not_touch_each_other(
    tmp_path: Path, drivers: list[Driver], units: ProcessUnits
) -> None:
    """Acceptance 20: another daemon's unit, under another generation, outlives our stops and our reaping."""
    driver = Driver(tmp_path, "1:RUNS")
    drivers.append(driver)
    theirs = driver.units[0]
    prepared = await units.prepare(make_plan(tmp_path, 2, RUNS))
    assert isinstance(prepared, Prepared)
    started = await units.start(prepared, None)
    assert isinstance(started, Started)
    os.kill(started.identity.guardian.pid, signal.SIGKILL)
    await units.wait(started.identity)
    assert isinstance(await units.stop(started.identity, 0.0), Confirmed)
    assert isinstance(await units.stop(UnitIdentity(Generation(3), "process"), 0.0), Confirmed)
    assert living(theirs.main, theirs.guardian) == [theirs.main, theirs.guardian]


async def test_a_frozen_daemon_never_blocks_its_engine_and_the_file_is_complete(
    tmp_path: Path, drivers: list[Driver], units: ProcessUnits
) -> None:
    """Acceptance 22: 10 MiB of output while nobody reads."""
    driver = Driver(tmp_path, "1:WAITS_THEN_FLOODS")
    drivers.append(driver)
    unit = driver.units[0]
    os.kill(driver.process.pid, signal.SIGSTOP)
    os.kill(unit.main.pid, signal.SIGUSR1)
    life = Path(unit.life_dir)
    wait_until((life / "flooded").exists, 60.0)
    log = tmp_path / "logs" / "1.log"
    tail = Path(f"{log}.tail")

    def numbers() -> list[int]:
        """Of every line in the files, oldest first: the head, the older tail, the newer one."""
        texts = [
            line.split(" ", 3) for path in (log, Path(f"{tail}.1"), tail) for line in path.read_text().splitlines()
        ]
        return [int(words[2]) for words in texts if words[2].isdigit()]

    wait_until(lambda: tail.exists() and "0102399 y" in tail.read_text()[-2000:], 30.0)
    assert numbers() == list(range(102400))
    assert living(unit.main) == [unit.main]
    assert log.stat().st_mode & 0o777 == 0o600
    os.kill(driver.process.pid, signal.SIGCONT)
    driver.kill()
    wait_until(lambda: not living(unit.main, unit.guardian))
    stored = [line async for line in units.logs(unit)]
    assert [line.text[:7] for line in stored[-2:]] == ["0102399", GREETING[:7]]
