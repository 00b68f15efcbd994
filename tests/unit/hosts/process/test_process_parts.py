"""The blocking parts of process units: identities, ports, binaries, listeners, the life directory, stored lines."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from stoker.domain.reconcile import IdentityVerdict
from stoker.errors import HostError
from stoker.hosts.process import binaries, guardian, life, listeners, memory, ports, procfs
from stoker.hosts.process.loglines import RING_BYTES, RING_LINES, LogRing, stored_lines
from stoker.hosts.process.units import ProcessUnits
from stoker.ids import DeploymentName, Generation, Scope, unit_name
from stoker.ports.units import Absent, Endpoint, Kept, LogLine, ProcessIdentity, Removed, UnitPlan

SCOPE = Scope("0123abcd")
OTHER_SCOPE = Scope(os.urandom(4).hex())


def make_plan(folder: Path, **fields: object) -> UnitPlan:
    plan = UnitPlan(
        scope=SCOPE,
        generation=Generation(1),
        name=unit_name(SCOPE, Generation(1)),
        deployment=DeploymentName("d"),
        replica=0,
        argv=("engine",),
        env={"HOME": str(folder / "life" / "home"), "TMPDIR": "/tmp"},
        files={"token": ("s3cret", True)},
        endpoint=Endpoint(),
        life_dir=str(folder / "life"),
        log_path=str(folder / "logs" / "1.log"),
        stop_grace_s=1.0,
    )
    return replace(plan, **fields)


# -- identities (S-42) -----------------------------------------------------------------------------------------------


def myself() -> ProcessIdentity:
    found = procfs.identify(os.getpid())
    assert found is not None
    return found


def test_a_process_is_same_only_with_its_pid_its_start_and_its_boot() -> None:
    me = myself()
    assert procfs.verdict(me) is IdentityVerdict.SAME
    assert procfs.verdict(replace(me, start_time=me.start_time + 1)) is IdentityVerdict.OTHER
    assert procfs.verdict(replace(me, boot_id="another")) is IdentityVerdict.GONE
    assert procfs.verdict(replace(me, pid=2**22 + 1)) is IdentityVerdict.GONE


def test_a_process_that_waits_to_be_reaped_is_gone_and_is_reaped_exactly() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = subprocess.Popen(["/bin/true"])
    identity = procfs.identify(child.pid)
    assert identity is not None
    assert child.stdin is not None
    child.stdin.close()
    for pid in (child.pid, other.pid):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert procfs.verdict(identity) is IdentityVerdict.GONE
    procfs.reap_exactly(replace(identity, start_time=1))
    assert os.path.exists(f"/proc/{child.pid}")
    procfs.reap_exactly(identity)
    assert not os.path.exists(f"/proc/{child.pid}")
    assert os.path.exists(f"/proc/{other.pid}")
    for process in (child, other):
        process.wait()


@pytest.mark.parametrize("problem", [PermissionError(13, "no"), ValueError("no"), IndexError("no")])
def test_what_cannot_be_read_is_unreadable_and_never_gone(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    me = myself()

    def refuse(pid: int) -> None:
        raise problem

    monkeypatch.setattr(procfs, "read_stat", refuse)
    assert procfs.verdict(me) is IdentityVerdict.UNREADABLE


@pytest.mark.parametrize(("threads", "expected"), [(1, IdentityVerdict.GONE), (2, IdentityVerdict.SAME)])
def test_a_dead_leader_with_living_threads_is_alive(
    monkeypatch: pytest.MonkeyPatch, threads: int, expected: IdentityVerdict
) -> None:
    me = myself()
    monkeypatch.setattr(procfs, "read_stat", lambda pid: ("x", "Z", 1, threads, me.start_time))
    assert procfs.verdict(me) is expected


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    shutil.copy("/bin/sleep", program)
    child = subprocess.Popen([str(program), "60"])
    try:
        name, state, parent, threads, start = guardian.read_stat(child.pid)
        assert (parent, threads) == (os.getpid(), 1)
        assert name == "a) R 1 (b"[:15]
        assert state in "RSD"
        assert start >= guardian.read_stat(os.getpid())[4]
    finally:
        child.kill()
        child.wait()


def marked_child(number: int) -> subprocess.Popen[bytes]:
    environment = {"PATH": os.defpath, "STOKER_UNIT": f"{OTHER_SCOPE}:{number}"}
    return subprocess.Popen(["/bin/sleep", "60"], env=environment)


def test_a_marked_process_that_came_after_the_listing_is_found_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-43: its parent was listed, forked it, and was gone before it was looked at."""
    real = os.listdir
    late = marked_child(7)
    listings: list[list[str]] = []

    def list_late(path: str) -> list[str]:
        listings.append([entry for entry in real(path) if listings or entry != str(late.pid)])
        return listings[-1]

    monkeypatch.setattr(procfs.os, "listdir", list_late)
    try:
        assert [(one.pid, generation) for one, generation in procfs.marked(OTHER_SCOPE)] == [(late.pid, 7)]
        assert len(listings) >= 2
    finally:
        late.kill()
        late.wait()


def test_an_environment_that_is_empty_during_an_exec_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    child = marked_child(8)
    reads: list[str] = []
    real = open

    def open_empty_first(path: str, mode: str = "r"):
        reads.append(path)
        return real("/dev/null" if path.endswith("environ") and len(reads) == 1 else path, mode)

    monkeypatch.setattr(procfs, "open", open_empty_first, raising=False)
    try:
        assert f"STOKER_UNIT={OTHER_SCOPE}:8".encode() in procfs._environment(str(child.pid))
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("number", ["", "x", "-1", "1 "])
def test_a_marker_without_a_generation_is_nobodys(number: str) -> None:
    environment = {"STOKER_UNIT": f"{OTHER_SCOPE}:{number}"}
    child = subprocess.Popen(["/bin/sleep", "60"], env=environment)
    try:
        assert list(procfs.marked(OTHER_SCOPE)) == []
    finally:
        child.kill()
        child.wait()


def test_a_signal_reaches_exactly_that_process_or_none() -> None:
    child = subprocess.Popen(["/bin/sleep", "60"])
    identity = procfs.identify(child.pid)
    assert identity is not None
    procfs.signal_exactly(replace(identity, start_time=identity.start_time - 1), 9)
    procfs.signal_exactly(replace(identity, boot_id="x"), 9)
    guardian.send_signal(identity.pid, identity.start_time - 1, 9)
    assert child.poll() is None
    procfs.signal_exactly(identity, 9)
    assert child.wait() == -9


# -- ports and listeners (S-44, S-45) --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_br_405_a_port_is_free_only_on_all_addresses(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_ports_of_ours_are_never_chosen_and_a_full_range_gives_none() -> None:
    held = set(range(23900, 23910))
    assert {ports.choose_port((23900, 23911), held) for _ in range(50)} == {23910, 23911}
    assert ports.choose_port((23900, 23909), held) is None


@pytest.mark.parametrize(
    ("bound", "wanted", "accepts"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("::", "127.0.0.1", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::ffff:0.0.0.0", "127.0.0.1", True),
        ("::1", "127.0.0.1", False),
        ("127.0.0.2", "127.0.0.1", False),
        ("::1", "::1", True),
        ("::", "::1", True),
        ("0.0.0.0", "::1", False),
    ],
)
def test_which_listeners_could_accept(bound: str, wanted: str, accepts: bool) -> None:
    assert listeners._accepts(ipaddress.ip_address(bound), ipaddress.ip_address(wanted)) is accepts


def test_a_listener_is_ours_foreign_or_not_there() -> None:
    endpoint = Endpoint(port=1)
    assert listeners.owned(endpoint, [os.getpid()]) is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(port=server.getsockname()[1])
        assert listeners.owned(endpoint, [os.getpid()]) is True
        assert listeners.owned(endpoint, []) is False
        assert listeners.holder(endpoint.port).startswith(f"pid {os.getpid()} (")
    assert listeners.holder(endpoint.port) == ""


def test_members_are_looked_up_only_until_every_socket_is_found() -> None:
    asked: list[int] = []
    nobody = 2**22 + 1

    def pids(*numbers: int) -> Iterator[int]:
        for number in numbers:
            asked.append(number)
            yield number

    assert listeners.owned(Endpoint(port=1), pids(os.getpid())) is None
    assert asked == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(port=server.getsockname()[1])
        assert listeners.owned(endpoint, pids(nobody, os.getpid(), nobody)) is True
        assert asked == [nobody, os.getpid()]


def test_sockets_of_a_member_that_hides_them_are_left_to_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-45: what cannot be attributed is decided by the token, but another user's socket is foreign."""

    def hide(pid: int) -> list[int]:
        raise PermissionError(13, "hidden")

    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(port=server.getsockname()[1])
        monkeypatch.setattr(listeners, "_sockets", hide)
        assert listeners.owned(endpoint, [os.getpid()]) is True
        monkeypatch.setattr(listeners, "_uid", lambda pid: iter([os.getuid() + 1]))
        assert listeners.owned(endpoint, [os.getpid()]) is False


# -- binaries (S-36) -------------------------------------------------------------------------------------------------


def test_the_program_is_looked_up_in_the_plans_path_and_not_in_ours(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    shutil.copy("/bin/true", program)
    assert binaries.resolve("engine", {"PATH": f"/nowhere:{tmp_path}"}) == str(program)
    with pytest.raises(FileNotFoundError):
        binaries.resolve("engine", {"PATH": "/nowhere"})


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_a_privileged_program_is_refused(tmp_path: Path, mode: int) -> None:
    program = tmp_path / "engine"
    shutil.copy("/bin/true", program)
    program.chmod(mode)
    with pytest.raises(binaries.Privileged):
        binaries.resolve(str(program), {})


def test_a_program_with_file_capabilities_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "engine"
    shutil.copy("/bin/true", program)
    monkeypatch.setattr(binaries.os, "listxattr", lambda path: ["security.capability"])
    with pytest.raises(binaries.Privileged):
        binaries.resolve(str(program), {})


# -- the life directory ----------------------------------------------------------------------------------------------


def test_the_life_directory_is_private_and_writing_it_twice_is_the_same(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    for _ in range(2):
        life.write(plan)
    assert stat.S_IMODE(os.stat(plan.life_dir).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{plan.life_dir}/token").st_mode) == 0o600
    assert os.path.isdir(f"{plan.life_dir}/home")


def test_a_link_in_the_place_of_the_life_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "life").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        life.write(make_plan(tmp_path))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"argv": ()},
        {"argv": ("a\0b",)},
        {"env": {"A=B": "c"}},
        {"files": {"../x": ("", False)}},
        {"files": {"unit.json": ("", False)}},
        {"life_dir": "relative"},
        {"log_path": "relative"},
    ],
)
def test_a_plan_that_no_host_could_run_is_a_wrong_argument(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"plan|file name|absolute"):
        life.check(make_plan(tmp_path, **wrong))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot_id": "x"}', '{"boot_id": "x", "guardian": [1], "main": [1, 2]}']
)
def test_a_record_that_no_guardian_wrote_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "unit.json").write_text(text)
    assert life.read_record(str(tmp_path)) is None


def test_a_folder_of_another_generation_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "life"
    folder.mkdir()
    record = {"scope": SCOPE, "generation": 2, "boot_id": "x", "log_path": "/l", "guardian": [1, 1], "main": [2, 2]}
    (folder / "unit.json").write_text(json.dumps(record))
    assert isinstance(life.delete(str(folder), Generation(1)), Kept)
    assert life.delete(str(folder), Generation(2)) == Removed()
    assert life.delete(str(folder), Generation(2)) == Absent()


# -- lines -----------------------------------------------------------------------------------------------------------


def record(text: str, dropped: int = 0) -> bytes:
    return json.dumps([1.0, "out", text, False, dropped]).encode()


@pytest.mark.anyio
async def test_a_follower_that_lags_learns_how_many_lines_it_lost() -> None:
    ring = LogRing()
    follower = ring.follow(0)
    ring.add_all([record("first"), record("after a gap", 5)])
    assert await anext(follower) == LogLine(1.0, "out", "first", 1)
    ring.add_all([record(str(number)) for number in range(RING_LINES + 10)])
    assert (await anext(follower)).dropped == 5
    line = await anext(follower)
    assert (line.text, line.dropped) == ("10", 10)
    ring.close()
    assert len([line async for line in follower]) == RING_LINES - 1


@pytest.mark.anyio
async def test_a_follower_waits_for_the_next_line_and_ends_with_the_log() -> None:
    ring = LogRing(cursor=41)
    seen: list[int] = []

    async def follow() -> None:
        seen.extend([line.cursor async for line in ring.follow(41)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await anyio.lowlevel.checkpoint()
        ring.add_all([record("x")])
        await anyio.lowlevel.checkpoint()
        ring.close()
    assert seen == [42]


def test_the_ring_is_bounded_in_bytes() -> None:
    ring = LogRing()
    ring.add_all([record("x" * 16_000) for _ in range(100)])
    assert sum(len(line.text) for line in ring._lines) <= RING_BYTES


def test_stored_lines_are_head_then_tails_with_gaps_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("2026-12-01T00:00:00.500Z out a b  c\n\n- gap 3 lines\n2026-12-01T00:00:01.000Z err d\n")
    (tmp_path / "log.tail.1").write_text("2026-12-01T00:00:02.000Z out e\n")
    (tmp_path / "log.tail").write_text("2026-12-01T00:00:03.000Z out f\n")
    lines = list(stored_lines(str(path)))
    assert [(line.stream, line.text, line.cursor, line.dropped) for line in lines] == [
        ("out", "a b  c", 1, 0),
        ("err", "d", 5, 3),
        ("out", "e", 6, 0),
        ("out", "f", 7, 0),
    ]
    assert lines[1].wall - lines[0].wall == pytest.approx(0.5)


def test_stored_lines_of_a_large_tail_begin_at_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = "2026-12-01T00:00:00.000Z out " + "x" * 970 + "\n"
    path.write_text("")
    (tmp_path / "log.tail").write_text(line * 5000)
    lines = list(stored_lines(str(path)))
    assert 2900 < len(lines) < 3200
    assert {len(one.text) for one in lines} == {970}


# -- the rest --------------------------------------------------------------------------------------------------------


def test_memory_is_proportional_and_none_when_nobody_can_be_read() -> None:
    usage = memory.measure([myself()])
    assert usage is not None
    assert usage.anonymous_bytes > 1 << 20
    assert usage.mapped_bytes > 0
    assert memory.measure([replace(myself(), pid=2**22 + 1)]) is None


def test_another_system_is_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "plan9")
    with pytest.raises(HostError, match="plan9"):
        ProcessUnits(SCOPE)


def test_a_kernel_without_process_handles_is_refused_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(HostError, match="handles"):
        ProcessUnits(SCOPE)


def test_the_guardian_stays_within_three_hundred_lines_of_the_standard_library() -> None:
    """S-34. Its output half is a file of its own and keeps to the standard library as well."""
    folder = Path(guardian.__file__).parent
    assert len((folder / "guardian.py").read_text().splitlines()) <= 300
    code = (
        "import sys, runpy\nbefore = set(sys.modules)\n"
        f"sys.argv = ['guardian']\nrunpy.run_path({str(folder / 'guardian.py')!r}, run_name='loaded')\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    told = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []
