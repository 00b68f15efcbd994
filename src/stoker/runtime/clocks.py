"""The machine's own clock and chance."""

from __future__ import annotations

import base64
import random
import secrets
import time


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
