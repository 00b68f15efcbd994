"""Ports, listeners and programs that may not start: acceptance 23, BR-405; S-36, S-44, S-45."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
from process_programs import LISTENS, RUNS, SHARED_PORT, make_plan
from process_waiting import Start

from stoker.hosts.process.units import ProcessUnits
from stoker.ports.units import Confirmed, Endpoint, Prepared, PrepareFailed, StartAnswer, Started, StartFailed, UnitPlan
from stoker.testing.units_contract import GREETING

pytestmark = pytest.mark.anyio
RANGE = (23871, 23872)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def listen(stack: ExitStack, host: str, port: int, *, shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return stack.enter_context(socket.create_server((host, port), family=family, reuse_port=shared))


async def answer(units: ProcessUnits, plan: UnitPlan, port: int | None = None) -> StartAnswer:
    prepared = await units.prepare(plan)
    assert isinstance(prepared, Prepared), prepared
    return await units.start(prepared, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
async def test_br_405_a_port_held_on_any_address_is_skipped(
    units: ProcessUnits, tmp_path: Path, stack: ExitStack, host: str
) -> None:
    listen(stack, host, RANGE[0])
    for generation in (1, 2, 3):
        started = await answer(units, make_plan(tmp_path, generation, RUNS, port_range=RANGE))
        assert isinstance(started, Started)
        assert started.endpoint.port == RANGE[1]
        assert isinstance(await units.stop(started.identity, 1.0), Confirmed)


async def test_br_405_a_port_of_ours_is_skipped_even_before_it_is_bound(units: ProcessUnits, tmp_path: Path) -> None:
    ports = set()
    for generation in (1, 2):
        started = await answer(units, make_plan(tmp_path, generation, RUNS, port_range=RANGE))
        assert isinstance(started, Started)
        ports.add(started.endpoint.port)
    assert ports == set(RANGE)
    failed = await answer(units, make_plan(tmp_path, 3, RUNS, port_range=RANGE))
    assert isinstance(failed, StartFailed)
    assert (failed.kind, failed.may_exist) == ("port-in-use", False)


async def test_br_405_a_fixed_port_is_never_changed_and_its_holder_named(
    units: ProcessUnits, tmp_path: Path, stack: ExitStack
) -> None:
    listen(stack, "127.0.0.1", RANGE[0])
    failed = await answer(units, make_plan(tmp_path, 1, RUNS, fixed_port=RANGE[0]))
    assert isinstance(failed, StartFailed)
    assert (failed.kind, failed.may_exist) == ("port-in-use", False)
    assert f"pid {os.getpid()}" in failed.detail
    assert str(RANGE[0]) in failed.detail
    started = await answer(units, make_plan(tmp_path, 2, RUNS, fixed_port=RANGE[1]))
    assert isinstance(started, Started)
    assert started.endpoint.port == RANGE[1]


async def test_br_405_a_foreign_listener_that_took_the_port_first_is_not_ours(
    units: ProcessUnits, start: Start, stack: ExitStack
) -> None:
    """Between test and bind: the engine stays alive without the port (mode: stays)."""
    started = await start(1, RUNS)
    assert await units.owns_listener(started.identity, started.endpoint) is None
    listen(stack, "0.0.0.0", started.endpoint.port)
    assert await units.owns_listener(started.identity, started.endpoint) is False


async def test_br_405_a_lost_race_is_retried_on_another_port_with_the_same_life(
    units: ProcessUnits, tmp_path: Path
) -> None:
    plan = make_plan(tmp_path, 1, LISTENS, port_range=RANGE)
    first = await answer(units, plan)
    assert isinstance(first, Started)
    assert isinstance(await units.stop(first.identity, 1.0), Confirmed)
    other = next(port for port in RANGE if port != first.endpoint.port)
    second = await units.start(Prepared(plan), other)
    assert isinstance(second, Started)
    assert second.endpoint.port == other
    assert second.identity.main != first.identity.main
    with anyio.fail_after(5):
        while await units.owns_listener(second.identity, second.endpoint) is None:
            await anyio.sleep(0.01)
    texts = [line async for line in _until_greeting(units, second)]
    assert texts[0].cursor > 0


async def _until_greeting(units: ProcessUnits, started: Started):
    async for line in units.logs(started.identity):
        yield line
        if line.text == GREETING:
            return


async def test_br_405_one_foreign_socket_on_a_shared_port_spoils_it(
    units: ProcessUnits, start: Start, stack: ExitStack
) -> None:
    started = await start(1, SHARED_PORT)
    with anyio.fail_after(5):
        while await units.owns_listener(started.identity, started.endpoint) is None:
            await anyio.sleep(0.01)
    assert await units.owns_listener(started.identity, started.endpoint) is True
    listen(stack, "127.0.0.1", started.endpoint.port, shared=True)
    assert await units.owns_listener(started.identity, started.endpoint) is False


async def test_a_unix_socket_needs_no_port_and_is_attributed(
    units: ProcessUnits, tmp_path: Path, stack: ExitStack
) -> None:
    path = str(tmp_path / "e.sock")
    program = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({path!r}); s.listen()\n{RUNS}"
    started = await answer(units, make_plan(tmp_path, 1, program, endpoint=Endpoint(socket=path)))
    assert isinstance(started, Started)
    assert started.endpoint == Endpoint(socket=path)
    with anyio.fail_after(5):
        while await units.owns_listener(started.identity, started.endpoint) is None:
            await anyio.sleep(0.01)
    assert await units.owns_listener(started.identity, started.endpoint) is True
    os.unlink(path)
    foreign = stack.enter_context(socket.socket(socket.AF_UNIX))
    foreign.bind(path)
    foreign.listen()
    assert await units.owns_listener(started.identity, started.endpoint) is False


async def test_a_socket_path_that_no_system_takes_is_refused_before_anything_exists(
    units: ProcessUnits, tmp_path: Path
) -> None:
    refused = await units.prepare(make_plan(tmp_path, 1, RUNS, endpoint=Endpoint(socket="/" + "x" * 120)))
    assert isinstance(refused, PrepareFailed)
    assert refused.kind == "launch-invalid"
    assert not (tmp_path / "lives").exists()


@pytest.mark.parametrize("way", ["itself", "interpreter"])
async def test_a_set_uid_engine_is_refused(units: ProcessUnits, tmp_path: Path, way: str) -> None:
    program = tmp_path / "engine"
    shutil.copy("/bin/sleep", program)
    program.chmod(0o755 | stat.S_ISUID)
    argv = (str(program), "60")
    if way == "interpreter":
        script = tmp_path / "script"
        script.write_text(f"#!{program} 60\n")
        script.chmod(0o755)
        argv = (str(script),)
    failed = await answer(units, make_plan(tmp_path, 1, "", argv=argv))
    assert isinstance(failed, StartFailed)
    assert (failed.kind, failed.may_exist) == ("engine-binary-privileged", False)


@pytest.mark.parametrize(
    ("content", "mode", "kind"),
    [
        (None, 0, "entrypoint-missing"),
        (b"#!/no/such/interpreter\n", 0o755, "entrypoint-missing"),
        (b"\x7fELF\x02\x01\x01" + b"\0" * 100, 0o755, "wrong-architecture"),
        (b"data", 0o644, "entrypoint-missing"),
    ],
    ids=["missing", "interpreter", "format", "mode"],
)
async def test_an_engine_that_cannot_be_executed_is_said_so_and_nothing_exists(
    units: ProcessUnits, tmp_path: Path, content: bytes | None, mode: int, kind: str
) -> None:
    program = tmp_path / "engine"
    if content is not None:
        program.write_bytes(content)
        program.chmod(mode)
    failed = await answer(units, make_plan(tmp_path, 1, "", argv=(str(program),)))
    assert isinstance(failed, StartFailed)
    assert (failed.kind, failed.may_exist) == (kind, False)


async def test_a_record_that_cannot_be_written_stops_the_engine_before_its_first_instruction(
    units: ProcessUnits, tmp_path: Path
) -> None:
    """S-37: no durable identity, no engine."""
    plan = make_plan(
        tmp_path, 1, "open('/tmp/never', 'x')", argv=(sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'x')")
    )
    prepared = await units.prepare(plan)
    assert isinstance(prepared, Prepared)
    os.mkdir(f"{plan.life_dir}/unit.json")
    failed = await units.start(prepared, None)
    assert isinstance(failed, StartFailed)
    assert (failed.kind, failed.may_exist) == ("runtime-error", False)
    assert not (tmp_path / "ran").exists()
