"""The machine's own clock and chance."""

from __future__ import annotations

import asyncio
import base64
import random
import secrets
import time
from collections.abc import Callable

import anyio


def loop_clock() -> Callable[[], float]:
    """Loop time of the running event loop. As `anyio.current_time`, which looks for the loop at each call."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:
        return anyio.current_time


class SystemClock:
    """`stoker.ports.clock.Clock`: wall time of the system, randomness of the operating system."""

    def __init__(self) -> None:
        self._jitter = random.SystemRandom()

    def wall(self) -> float:
        return time.time()

    def token(self, bytes_: int = 16) -> str:
        return base64.urlsafe_b64encode(secrets.token_bytes(bytes_)).rstrip(b"=").decode()

    def jitter(self) -> float:
        return self._jitter.random()
