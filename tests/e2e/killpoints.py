"""A daemon that kills itself with KILL at one numbered step (S-98): ``python killpoints.py K``.

The product knows nothing of this: the driver wraps the ports of a real daemon and lets it run as always. ``K`` 0 never
kills. Points 13 and 14 are instants inside a stop; a thread counts down beside it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from stoker.cli import composition
from stoker.hosts.process.units import ProcessUnits
from stoker.journal.sqlite import SqliteJournal
from stoker.runtime.effects import Carrier
from stoker.runtime.outbox import Announce, Spawn


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(kind: type, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """Die right after an awaited port call whose arguments satisfy ``when``."""
    inner = getattr(kind, name)

    async def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        answer = await inner(self, *arguments, **named)
        if when(*arguments):
            die()
        return answer

    setattr(kind, name, wrapped)


def during(kind: type, name: str, seconds: float, seen: Callable[..., bool] | None = None) -> None:
    """Die ``seconds`` into an awaited port call, or as soon as ``seen`` of its arguments is true."""
    inner = getattr(kind, name)

    async def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        def count_down() -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end and not (seen is not None and seen(*arguments)):
                time.sleep(0.0005)
            die()

        threading.Thread(target=count_down, daemon=True).start()
        return await inner(self, *arguments, **named)

    setattr(kind, name, wrapped)


def at_event(event: str) -> None:
    inner = Carrier._carry

    def wrapped(self: Any, instruction: Any) -> None:
        if isinstance(instruction, Announce) and instruction.event.event == event:
            die()
        inner(self, instruction)

    Carrier._carry = wrapped


def at_spawn(second: bool = False) -> None:
    inner = Carrier._carry
    count = [0]

    def wrapped(self: Any, instruction: Any) -> None:
        if isinstance(instruction, Spawn):
            count[0] += 1
            if count[0] > second:
                die()
        inner(self, instruction)

    Carrier._carry = wrapped


def verb(name: str) -> Callable[..., bool]:
    return lambda generation, which, *rest: which == name


def record_exists(prepared: Any, *_: Any) -> bool:
    return os.path.exists(os.path.join(prepared.plan.life_dir, "unit.json"))


POINTS: dict[int, Callable[[], None]] = {
    0: lambda: None,
    1: at_spawn,
    2: lambda: after(SqliteJournal, "write_session"),
    4: lambda: after(ProcessUnits, "prepare"),
    5: lambda: after(SqliteJournal, "intend", verb("start")),
    6: lambda: during(ProcessUnits, "start", 5.0, record_exists),
    7: lambda: after(ProcessUnits, "start"),
    8: lambda: after(SqliteJournal, "outcome", lambda act, outcome, wall: outcome == "started"),
    9: lambda: at_event("session.load-completed"),
    10: lambda: after(SqliteJournal, "write_phase", lambda generation, phase, *rest: phase == "ready"),
    11: lambda: at_event("session.drain-begun"),
    12: lambda: after(SqliteJournal, "intend", verb("stop")),
    13: lambda: during(ProcessUnits, "stop", 0.02),
    14: lambda: during(ProcessUnits, "stop", 1.05),
    15: lambda: after(ProcessUnits, "stop"),
    16: lambda: after(SqliteJournal, "end_session"),
    17: lambda: after(ProcessUnits, "remove"),
    18: lambda: at_spawn(second=True),
}


if __name__ == "__main__":
    POINTS[int(sys.argv[1])]()
    sys.exit(composition.serve({}, config_file=None, echo=lambda text: print(text, flush=True), auto=False))
