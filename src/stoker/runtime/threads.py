"""Worker threads with one named limit (DESIGN section 4, 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class WorkerThreads:
    """`stoker.ports.threads.Threads` on anyio's threads, ``most`` at once."""

    def __init__(self, most: int = 8) -> None:
        self._limiter = anyio.CapacityLimiter(most)

    async def __call__(self, act: Callable[..., T], *arguments: object) -> T:
        return await anyio.to_thread.run_sync(act, *arguments, limiter=self._limiter, abandon_on_cancel=True)
