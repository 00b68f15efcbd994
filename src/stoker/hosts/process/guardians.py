"""Guardian processes as the daemon sees them: started, kept in reserve, told and heard (S-34, S-35).

Each has two socket pairs and inherits nothing else. Closing *control* is all it takes to end one, with everything it
owns. One idle guardian is kept so that a start does not wait for an interpreter.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from stoker.hosts.process.output import Channel

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guardian.py")
_LEAVE_S = 6.0
_RESEND_S = 0.005


class GuardianProcess:
    """One guardian and our ends of its sockets. ``close`` lets go of it; ``leave`` waits until it has gone."""

    def __init__(self, program: str) -> None:
        ours, theirs = socket.socketpair()
        our_log, their_log = socket.socketpair()
        with theirs, their_log:
            fds = (theirs.fileno(), their_log.fileno())
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-X", "utf8", program, *map(str, fds)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=fds,
                    start_new_session=True,
                    cwd="/",
                    env=_environment(),
                )
            except OSError:
                ours.close()
                our_log.close()
                raise
        self.pid = self.process.pid
        self.control = Channel(ours)
        self.log = our_log
        our_log.setblocking(False)
        self._pidfd: int | None = os.pidfd_open(self.pid)

    async def tell(self, word: str, **fields: Any) -> None:
        """Send one message, whole. A guardian that is gone is noticed by whoever listens."""
        self.control.say(word, **fields)
        while self.control.pending:  # larger than the socket's buffer, or a frozen guardian: the caller has a deadline
            await anyio.sleep(_RESEND_S)
            self.control.flush()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    async def leave(self) -> None:
        """Wait for its exit and collect it. To be called once nobody reads its sockets any more, or before close."""
        if self._pidfd is not None:
            await anyio.wait_readable(self._pidfd)
        self.process.wait()

    def close(self) -> None:
        self.control.sock.close()
        self.log.close()
        self.process.poll()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _environment() -> Mapping[str, str]:
    """Enough for the interpreter itself; a secret of ours is never in a guardian's environment."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"LANG": "C.UTF-8", **kept}


class Spares:
    """Keeps ``count`` idle guardians. A spare that died is replaced where it is missed."""

    def __init__(self, tasks: TaskGroup, limiter: anyio.CapacityLimiter, program: str, count: int) -> None:
        self._tasks = tasks
        self._limiter = limiter
        self._program = program
        self._count = count
        self._idle: list[GuardianProcess] = []
        self._filling = False

    async def take(self) -> GuardianProcess:
        while self._idle:
            guardian = self._idle.pop(0)
            if guardian.is_alive:
                return guardian
            guardian.close()
        return await self._spawn()

    def refill(self) -> None:
        """Start what is missing, beside whatever else happens."""
        if not self._filling:
            self._filling = True
            self._tasks.start_soon(self._fill)

    async def _fill(self) -> None:
        try:
            while len(self._idle) < self._count:
                self._idle.append(await self._spawn())
        except OSError:
            return  # a machine that starts no process now: the next start tries again, and says so
        finally:
            self._filling = False

    async def close(self) -> None:
        """After the end of the tasks that fill."""
        while self._idle:
            await dismiss(self._idle.pop())

    async def _spawn(self) -> GuardianProcess:
        spawned: list[GuardianProcess] = []
        with anyio.CancelScope(shield=True):  # a process that was started is never lost to a cancellation
            spawned.append(await anyio.to_thread.run_sync(GuardianProcess, self._program, limiter=self._limiter))
        return spawned[0]


async def dismiss(guardian: GuardianProcess) -> None:
    """Close *control*, let it do its orphan work, and collect it."""
    guardian.control.sock.close()
    guardian.log.close()
    with anyio.move_on_after(_LEAVE_S, shield=True):
        await guardian.leave()
    guardian.close()
