"""An engine's HTTP, as the supervisor needs it: short calls that are not on the request path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stoker.ports.units import Endpoint


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole small answer. ``headers`` lower-cased; ``body`` at most the asked limit."""

    status: int
    headers: dict[str, str]
    body: bytes
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class NoReply:
    """No whole answer: ``cause`` is ``refused``, ``timeout``, ``reset`` or ``bad-answer``."""

    cause: str


class Probes(Protocol):
    """Calls on a fresh connection each, never following redirects (S-100)."""

    async def call(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        *,
        token: str | None,
        body: bytes = b"",
        timeout_s: float = 2.0,
        max_bytes: int = 1 << 20,
    ) -> Reply | NoReply:
        """One exchange; every failure is a `NoReply`, never an exception."""
        ...
