"""Every test of this folder ends with nothing left: no process of our scope, no guardian, no descriptor."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from process_programs import SCOPE, make_plan, marked
from process_waiting import Start, guardians, wait_until

from stoker.hosts.process.units import ProcessUnits
from stoker.ports.units import Prepared, Started, UnitPlan


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    wait_until(lambda: not marked(), 10.0)
    wait_until(lambda: not guardians(), 10.0)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture
async def units(anyio_backend: str) -> AsyncIterator[ProcessUnits]:
    async with ProcessUnits(SCOPE) as opened:
        yield opened


@pytest.fixture
def start(units: ProcessUnits, tmp_path: Path) -> Start:
    """Prepare and start a program; `Started` or a failed test."""

    async def run(generation: int, program: str, *extra: str, **fields: object) -> Started:
        plan: UnitPlan = make_plan(tmp_path, generation, program, *extra, **fields)
        prepared = await units.prepare(plan)
        assert isinstance(prepared, Prepared), prepared
        started = await units.start(prepared, None)
        assert isinstance(started, Started), started
        return started

    return run
