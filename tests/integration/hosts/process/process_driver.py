"""A daemon in small: starts units, tells their identities on stdout, and stays until it is killed.

Run as a program: ``process_driver.py FOLDER POINT GENERATION:PROGRAM…``. ``POINT`` ``serving`` stays after the starts;
``told`` kills itself the moment the launch was handed to the guardian, before it can have answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import process_programs

from stoker.hosts.process.guardians import GuardianProcess
from stoker.hosts.process.units import ProcessUnits
from stoker.ports.units import Prepared, Started


async def tell_and_die(self: GuardianProcess, word: str, **fields: object) -> None:
    self.control.say(word, **fields)
    os.kill(os.getpid(), signal.SIGKILL)


async def drive(folder: Path, point: str, starts: list[str]) -> None:
    async with ProcessUnits(process_programs.SCOPE) as units:
        for start in starts:
            generation, name = start.split(":")
            plan = process_programs.make_plan(folder, int(generation), getattr(process_programs, name))
            prepared = await units.prepare(plan)
            assert isinstance(prepared, Prepared), prepared
            if point == "told":
                GuardianProcess.tell = tell_and_die
            started = await units.start(prepared, None)
            assert isinstance(started, Started), started
            async for line in units.logs(started.identity):
                if line.text == process_programs.GREETING:
                    break
            print(json.dumps({**asdict(started.identity), "port": started.endpoint.port}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(drive(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
