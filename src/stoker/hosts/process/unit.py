"""One unit of this run: what its guardian said, and who waits for the next word (S-37 to S-41).

The end is what the guardian's wait says, nothing else. A guardian that vanishes without that word is *lost*: then the
engine dies by its parent-death signal and the rest is ended by identity (S-39); until that is done nothing is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from stoker.hosts.process.guardians import GuardianProcess
from stoker.hosts.process.loglines import LogRing
from stoker.hosts.process.procfs import boot_id
from stoker.ports.units import (
    Endpoint,
    Exit,
    ProcessIdentity,
    StopAnswer,
    Survivor,
    Unconfirmed,
    UnconfirmedCause,
    UnitIdentity,
    UnitPlan,
)

LOG_READ_BYTES = 1 << 16
GUARDIAN_LOST = "guardian-lost"


class LiveUnit:
    """State and watchers of one start. ``members`` is the set last recorded; it outlives the guardian."""

    def __init__(self, plan: UnitPlan, endpoint: Endpoint, guardian: GuardianProcess, cursor: int) -> None:
        self.plan = plan
        self.endpoint = endpoint
        self.guardian = guardian
        self.ring = LogRing(cursor)
        self.identity: UnitIdentity | None = None
        self.members: tuple[ProcessIdentity, ...] = ()
        self.failure: dict[str, Any] | None = None
        self.exit: Exit | None = None
        self.has_ended = False
        self.is_lost = False
        self.has_left = False  # the guardian itself, a moment after its last word
        self.burial: StopAnswer | None = None
        self.fault = ""
        self._survivors: tuple[int, Unconfirmed] | None = None
        self._last_stop = 0
        self._changed = anyio.Event()

    @property
    def is_over(self) -> bool:
        """Nothing of it can be left: the guardian said so, or all that could be identified was ended."""
        return self.has_ended or (self.burial is not None and not isinstance(self.burial, Unconfirmed))

    @property
    def is_known(self) -> bool:
        """The start has an outcome."""
        return self.identity is not None or self.failure is not None or self.has_ended or self.is_lost

    def change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    async def stop(self, grace_s: float) -> Unconfirmed | None:
        """Ask for the end and wait until it came, until survivors are named, or until the guardian is lost."""
        self._last_stop += 1
        mine = self._last_stop
        await self.guardian.tell("stop", id=mine, grace_s=grace_s)
        await self.until(lambda: self.has_ended or self.is_lost or self._told(mine) is not None)
        return None if self.has_ended or self.is_lost else self._told(mine)

    def _told(self, stop_id: int) -> Unconfirmed | None:
        """The survivors reported for that stop, or a later one."""
        return self._survivors[1] if self._survivors is not None and self._survivors[0] >= stop_id else None

    async def watch(self, bury: Callable[[LiveUnit], Awaitable[StopAnswer]]) -> None:
        """Listen and read until both channels have ended, let go of the guardian, bury what a lost one left."""
        async with anyio.create_task_group() as both:
            both.start_soon(self._read_log)
            await self._listen()
            await self.guardian.leave()
        self.guardian.close()
        self.has_left = True
        self.change()
        if self.is_lost:
            self.burial = await bury(self)
            self.change()

    async def _listen(self) -> None:
        channel = self.guardian.control
        while True:
            await anyio.wait_readable(channel.sock)
            messages = channel.receive()
            if messages is None:
                break
            for message in messages:
                self._hear(message)
            self.change()
        self.is_lost = not self.has_ended
        self.change()

    async def _read_log(self) -> None:
        """Read the *log* channel to its end, whether or not anybody follows."""
        rest = b""
        try:
            while True:
                await anyio.wait_readable(self.guardian.log)
                data = self._receive_log()
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                self.ring.add_all(lines)
        finally:
            self.ring.close()

    def _receive_log(self) -> bytes:
        try:
            return self.guardian.log.recv(LOG_READ_BYTES)
        except OSError:
            return b""

    def _hear(self, message: dict[str, Any]) -> None:
        match message["word"]:
            case "started":
                (guardian_pid, guardian_start), (main_pid, main_start) = message["guardian"], message["main"]
                main = ProcessIdentity(main_pid, main_start, boot_id())
                self.members = (main,)
                self.identity = UnitIdentity(
                    generation=self.plan.generation,
                    kind="process",
                    guardian=ProcessIdentity(guardian_pid, guardian_start, boot_id()),
                    main=main,
                    members=(main,),
                    life_dir=self.plan.life_dir,
                )
            case "failed":
                self.failure, self.has_ended = message, True
            case "gone":
                ended = message["exit"]
                self.exit = Exit(ended["code"], ended["signal"], None, ended["wall"], ended["by"])
                self.has_ended = True
            case "survivors":
                survivors = tuple(Survivor(pid, name, state) for pid, _, name, state in message["survivors"])
                names = ", ".join(f"{one.pid} ({one.name}, {one.state})" for one in survivors)
                answer = Unconfirmed(UnconfirmedCause.SURVIVORS, f"still alive after KILL: {names}", survivors)
                self._survivors = (message["id"], answer)
            case "fault":
                self.fault = message["text"]
