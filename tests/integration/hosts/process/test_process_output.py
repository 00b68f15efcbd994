"""What an engine is given and what becomes of its output: acceptance 21, 22, 26; BR-205 (c) and (d); S-36, S-46 to S-51."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import anyio
import pytest
from process_programs import FLOOD, NOISY_LOAD, RUNS, SCOPE, STRANGE_LINES, TELLS, make_plan
from process_waiting import Start, wait_until

from stoker.hosts.process.units import ProcessUnits
from stoker.ports.units import Exited, LogLine, UnitIdentity
from stoker.testing.units_contract import GREETING

pytestmark = pytest.mark.anyio


async def lines_of(units: ProcessUnits, unit: UnitIdentity) -> list[LogLine]:
    with anyio.fail_after(20):
        return [line async for line in units.logs(unit)]


async def test_br_205_a_mebibyte_on_each_stream_before_listening_does_not_block_the_load(
    units: ProcessUnits, start: Start, tmp_path: Path
) -> None:
    """Acceptance 21: no reader is attached while it is written; the last lines can be read afterwards."""
    unit = (await start(1, NOISY_LOAD)).identity
    log = tmp_path / "logs" / "1.log"
    wait_until(lambda: GREETING in "".join(p.read_text() for p in log.parent.glob("1.log*")), 20.0)
    seen: list[LogLine] = []
    with anyio.fail_after(5):
        async for line in units.logs(unit):
            seen.append(line)
            if sum(one.dropped + 1 for one in seen) == 8193:
                break
    assert {line.stream for line in seen} == {"out", "err"}
    assert GREETING in {line.text for line in seen}


async def test_br_205_long_broken_and_repainted_lines_are_readable(units: ProcessUnits, start: Start) -> None:
    """Acceptance 21."""
    unit = (await start(1, STRANGE_LINES)).identity
    lines = await lines_of(units, unit)
    long = [line.text for line in lines if line.text.startswith("a")]
    assert sum(text.count("a") for text in long) == 200_000 - 0
    assert all(len(text) <= 16 * 1024 + len(" [cut]") for text in long)
    assert all(text.endswith(" [cut]") for text in long[:-1])
    rest = [(line.text, line.repaint) for line in lines if line.text not in long]
    assert rest == [
        ("bad \ufffd\ufffd utf-8", False),
        ("北京", False),
        ("red nul", False),
        ("10%", True),
        ("20%", True),
        ("30%", False),
        ("crlf", False),
        ("no end", False),
        ("the end without newline", False),
    ]
    assert [line.cursor for line in lines] == list(range(1, len(lines) + 1))


async def test_no_secret_reaches_the_log_its_file_or_the_argv(
    units: ProcessUnits, start: Start, tmp_path: Path
) -> None:
    """Acceptance 26, S-48: whole, in the middle of a word, and split over two writes."""
    secret = "tok-0123456789abcdef"
    program = (
        "import os, time\n"
        f"s = bytes.fromhex({secret.encode().hex()!r})\n"
        "os.write(1, b'key=' + s + b'!\\n'); os.write(2, b'x' + s[:9]); time.sleep(0.5); os.write(2, s[9:] + b'y\\n')\n"
        "os.write(1, b'z' * 16380 + s + b'\\n')\n"
    )
    unit = (await start(1, program, secrets=(secret,))).identity
    lines = await lines_of(units, unit)
    told = "".join(line.text for line in lines) + (tmp_path / "logs" / "1.log").read_text()
    assert secret not in told
    assert "0123456789" not in told.replace("z", "")
    assert told.count("[secret]") == 6
    assert lines[0].text == "key=[secret]!"


async def test_the_engine_gets_exactly_what_the_plan_says(
    units: ProcessUnits, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acceptance 26, S-36, S-46: built environment, empty stdin, own session, no core, no stray descriptor."""
    monkeypatch.setenv("STOKER_SECRET_OF_THE_DAEMON", "never")
    started = await start(1, TELLS)
    lines = await lines_of(units, started.identity)
    told = json.loads(lines[0].text)
    plan = make_plan(tmp_path, 1, TELLS)
    assert told["env"] == {**plan.env, "PORT": str(started.endpoint.port)} | (
        {"LC_CTYPE": told["env"]["LC_CTYPE"]} if "LC_CTYPE" in told["env"] else {}  # the interpreter's own coercion
    )
    assert told["argv"] == ["-c", str(started.endpoint.port)]
    assert told["stdin"] == ""
    assert told["cwd"] == plan.life_dir
    assert told["umask"] == 0o077
    assert told["core"] == [0, 0]
    with open("/proc/self/oom_score_adj") as file:
        assert told["oom"] == min(1000, int(file.read()) + 500)
    assert told["sid"] == told["pgid"] == told["pid"] == started.identity.main.pid
    assert told["fds"] == [0, 1, 2, 3]  # 3 is the listing itself
    assert int(told["ignored"], 16) & (1 << signal.SIGHUP - 1 | 1 << signal.SIGTERM - 1) == 0
    with open(f"{plan.life_dir}/token") as file:
        assert file.read() == "s3cret"
    assert os.stat(f"{plan.life_dir}/token").st_mode & 0o777 == 0o600
    assert os.stat(plan.life_dir).st_mode & 0o777 == 0o700


async def test_a_guardian_carries_no_secret_in_its_argv_or_environment(units: ProcessUnits, start: Start) -> None:
    """S-35."""
    unit = (await start(1, RUNS, secrets=("tok-42",), env={"PATH": os.defpath, "KEY": "tok-42"})).identity
    for name in ("cmdline", "environ"):
        assert b"tok-42" not in Path(f"/proc/{unit.guardian.pid}/{name}").read_bytes()
    record = json.loads(Path(unit.life_dir, "unit.json").read_text())
    assert record == {
        "scope": SCOPE,
        "generation": 1,
        "boot_id": unit.main.boot_id,
        "log_path": record["log_path"],
        "guardian": [unit.guardian.pid, unit.guardian.start_time],
        "main": [unit.main.pid, unit.main.start_time],
    }


async def test_a_blocked_daemon_loses_the_oldest_lines_and_knows_how_many(units: ProcessUnits, start: Start) -> None:
    """Acceptance 22, S-49: nothing of this process reads while 10 MiB are written."""
    started = await start(1, FLOOD)
    wait_until(Path(started.identity.life_dir, "flooded").exists, 60.0)  # blocks the event loop on purpose
    total, gaps = 0, 0
    with anyio.fail_after(20):
        async for line in units.logs(started.identity):
            total += line.dropped + 1
            gaps += line.dropped > 0
            if line.text == GREETING:
                break
    assert total == 102401
    assert gaps > 0


async def test_a_full_disk_costs_lines_and_not_the_engine(units: ProcessUnits, start: Start) -> None:
    """S-51: ``/dev/full`` is the disk."""
    unit = (await start(1, NOISY_LOAD, log_path="/dev/full")).identity
    with anyio.fail_after(20):
        async for line in units.logs(unit):
            if line.text == GREETING:
                break
    assert isinstance(await units.stop(unit, 1.0), object)
    assert isinstance(await units.wait(unit), Exited)
