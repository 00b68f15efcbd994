"""Waiting and counting, for the tests of process units."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import psutil

Start = Callable[..., Any]


def wait_until(condition: Callable[[], object], bound_s: float = 5.0) -> None:
    """Poll with a bound; for what no event announces."""
    until = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < until, f"not within {bound_s} s"
        time.sleep(0.01)


async def until(condition: Callable[[], object], bound_s: float = 5.0) -> None:
    with anyio.fail_after(bound_s):
        while not condition():
            await anyio.sleep(0.01)


def guardians() -> list[int]:
    """Guardians among our descendants, dead ones that nobody collected included."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("guardian" in word for word in process.cmdline()):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found
