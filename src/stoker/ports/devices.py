"""Reading the machine's memories."""

from __future__ import annotations

from typing import Protocol

from stoker.domain.hardware import Hardware


class Devices(Protocol):
    """Sensors of one host. Calls may block for a moment; the shell runs them in a thread with a limit (M-27)."""

    def read(self) -> Hardware:
        """A fresh reading of every pool. A pool that could not be read has state ``unknown``, never zero bytes."""
        ...
