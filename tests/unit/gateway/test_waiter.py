"""What ends a pause: a poke, its limit, and never a look at the clock (R-13, R-46)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stoker.gateway.waiting import Waiter

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.mark.parametrize("limit_s", [0.0, 0.0004, 0.0014, 0.0101])
async def test_a_limit_that_is_over_is_no_poke_whatever_the_clocks_grain(anyio_backend: Any, limit_s: float) -> None:
    for _ in range(5):
        assert await Waiter().pause(limit_s) is False


@pytest.mark.parametrize("limit_s", [None, 30.0])
async def test_a_poke_ends_a_pause_at_once(anyio_backend: Any, limit_s: float | None) -> None:
    waiter = Waiter()
    ways: tuple[Callable[[], None], ...] = (waiter.poke, lambda: waiter.wake(None))  # type: ignore[arg-type]
    for way in ways:
        asyncio.get_running_loop().call_soon(way)
        assert await waiter.pause(limit_s) is True


async def test_pokes_between_pauses_and_twice_do_no_harm(anyio_backend: Any) -> None:
    waiter = Waiter()
    waiter.poke()
    asyncio.get_running_loop().call_soon(waiter.poke)
    asyncio.get_running_loop().call_soon(waiter.poke)
    assert await waiter.pause(30.0) is True
    waiter.poke()
    assert await waiter.pause(0.001) is False


async def test_a_pause_that_is_cancelled_leaves_no_timer_behind(anyio_backend: Any) -> None:
    waiter = Waiter()
    pausing = asyncio.create_task(waiter.pause(30.0))
    await asyncio.sleep(0)
    pausing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    waiter.poke()
