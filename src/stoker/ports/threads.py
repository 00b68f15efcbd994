"""Blocking calls leave the event loop here, so that a simulation can make them instant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Threads(Protocol):
    async def __call__(self, act: Callable[..., T], *arguments: object) -> T:
        """``act(*arguments)`` in a worker thread with a named limit; abandoned, not stopped, when cancelled."""
        ...
