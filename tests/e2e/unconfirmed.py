"""A daemon whose host cannot confirm a stop while the file ``held`` exists in its home: ``python unconfirmed.py 0``.

It stands for a helper that hangs in the kernel: the stop is carried out, and the answer names one survivor that holds
memory.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from stoker.cli import composition
from stoker.hosts.process.units import ProcessUnits
from stoker.ports.units import Survivor, Unconfirmed, UnconfirmedCause

SURVIVOR = Survivor(pid=4242, name="stuck-helper", state="D", bytes=20 << 20)
stop = ProcessUnits.stop


async def unconfirmed(self: Any, unit: Any, grace_s: float) -> Any:
    answer = await stop(self, unit, grace_s)
    if os.path.exists(os.path.join(os.environ["STOKER_HOME"], "held")):
        return Unconfirmed(UnconfirmedCause.SURVIVORS, "one process is stuck in the kernel", (SURVIVOR,))
    return answer


if __name__ == "__main__":
    setattr(ProcessUnits, "stop", unconfirmed)  # noqa: B010 - the type says that a method stays what it is
    sys.exit(composition.serve({}, config_file=None, echo=lambda text: print(text, flush=True), auto=False))
