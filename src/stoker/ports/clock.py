"""What is not monotonic time: wall time, ids and jitter. Loop time comes from the event loop itself."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time and chance, in one place so that a simulation can fix both."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def token(self, bytes_: int = 16) -> str:
        """A fresh random string, base64url without padding, of ``bytes_`` random bytes."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...
