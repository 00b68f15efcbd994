"""Every test of this folder ends with nothing left: no process of our scope, no guardian, no descriptor."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from process_programs import SCOPE, make_plan, marked

from stoker.hosts.process.units import ProcessUnits
from stoker.ports.units import Prepared, Started, UnitPlan

Start = Callable[..., Any]


def wait_until(condition: Callable[[], object], bound_s: float = 5.0) -> None:
    """Poll with a bound; for what no event announces."""
    until = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < until, f"not within {bound_s} s"
        time.sleep(0.01)


def guardians() -> list[int]:
    return [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if any("guardian" in word for word in process.cmdline())
    ]


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


async def until(condition: Callable[[], object], bound_s: float = 5.0) -> None:
    with anyio.fail_after(bound_s):
        while not condition():
            await anyio.sleep(0.01)
