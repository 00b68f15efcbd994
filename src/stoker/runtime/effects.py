"""Carries what the kernel hands out to the ports, and posts what happened back as observations.

One supervisor task per life. The order of the outbox is kept; what wakes others is called only after the kernel has
come to rest, so nobody ever sees a half-made step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

import anyio
import anyio.abc
import anyio.lowlevel

from stoker.domain.deployments import DeploymentSpec
from stoker.errors import HostError, StokerError
from stoker.ids import Generation
from stoker.ports.journal import Hold, Journal, OperationRow
from stoker.ports.threads import Threads
from stoker.runtime.bus import Bus
from stoker.runtime.inputs import GenerationsStored, Resolved, TimePassed, Unresolved
from stoker.runtime.kernel import Kernel
from stoker.runtime.outbox import (
    Announce,
    Carry,
    FetchGenerations,
    Instruction,
    OpenDoor,
    Resolve,
    Spawn,
    Wake,
    WriteHold,
    WriteOperation,
)  # fmt: skip
from stoker.runtime.resolving import Resolver
from stoker.runtime.supervisor import Supervisor, Surroundings
from stoker.runtime.tickets import Door
from stoker.runtime.uses import Upstreams

_NET_S = 1.0


class KernelFault(BaseException):
    """The kernel broke one of its own rules. Not an `Exception`, so that no boundary below the daemon swallows it."""


@dataclass(slots=True)
class Carrier:
    """The shell around one kernel. `run` owns every task; it returns when it is cancelled and all have ended."""

    kernel: Kernel
    bus: Bus
    journal: Journal
    resolver: Resolver
    threads: Threads
    upstreams: Upstreams
    now: Callable[[], float]
    surroundings: Surroundings | None = None
    _supervisors: dict[Generation, Supervisor] = field(default_factory=dict)
    _tasks: anyio.abc.TaskGroup | None = None
    _todo: deque[Instruction] = field(default_factory=deque)
    _carrying: bool = False
    _alarm: anyio.Event = field(default_factory=anyio.Event)
    _sleeping_until: float = math.inf
    _fetching: bool = False
    _rested: anyio.Event = field(default_factory=anyio.Event)
    _watchers: list[anyio.Event] = field(default_factory=list)

    # -- in and out ------------------------------------------------------------------------------------------------

    def post(self, incoming: Any) -> Any:
        """Apply one input and carry what follows. Raises the `StokerError` that refuses a command, or `KernelFault`."""
        try:
            return self.kernel.apply(incoming, self.now())
        except StokerError:
            raise
        except Exception as broken:
            raise KernelFault(f"the kernel failed on {type(incoming).__name__}: {broken!r}") from broken
        finally:
            self.carry()

    def carry(self) -> None:
        """Carry everything in the outbox, in order; a call from inside a call leaves it to the outer one."""
        self._todo.extend(self.kernel.drain())
        if self._carrying:
            return
        if self._todo:
            self._carrying = True
            try:
                while self._todo:
                    self._carry(self._todo.popleft())
                    self._todo.extend(self.kernel.drain())
            finally:
                self._carrying = False
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.set()
        if self.kernel.next_alarm() < self._sleeping_until:
            self._alarm.set()

    def _carry(self, instruction: Instruction) -> None:
        match instruction:
            case Wake(ticket=ticket):
                ticket.wake(ticket)
            case Announce(event=event):
                self.bus.publish(event)
            case Carry(generation=generation, effect=effect, reason=reason):
                supervisor = self._supervisors.get(generation)
                if supervisor is not None:
                    supervisor.give(effect, reason)
            case OpenDoor(door=door):
                self._open(door)
            case Spawn(assignment=assignment):
                assert self.surroundings is not None
                supervisor = Supervisor(assignment, self.surroundings)
                self._supervisors[assignment.generation] = supervisor
                self._start(self._supervise, supervisor)
            case Resolve(spec=spec):
                self._start(self._resolve, spec)
            case FetchGenerations():
                if not self._fetching:
                    self._fetching = True
                    self._start(self._fetch_generations)
            case WriteHold(deployment=deployment, replica=replica, hold=hold):
                self._start(self._write_hold, deployment, replica, hold)
            case WriteOperation(row=row):
                self._start(self._write_operation, row)
            case _:
                assert_never(instruction)

    def _start(self, act: Callable[..., Any], *arguments: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(act, *arguments)

    def _open(self, door: Door) -> None:
        self.upstreams.open(door)
        supervisor = self._supervisors.get(door.generation)
        if supervisor is not None:
            supervisor.watch_ready(door)

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._tick)
            tasks.start_soon(self._net)
            task_status.started()
            await anyio.sleep_forever()

    async def _supervise(self, supervisor: Supervisor) -> None:
        try:
            await supervisor.run()
        finally:
            self._supervisors.pop(supervisor.generation, None)
            if not self._supervisors:
                self._rested.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds after a step of the kernel; any number may wait, each for its own."""
        while not condition():
            stepped = anyio.Event()
            self._watchers.append(stepped)
            await stepped.wait()

    async def rest(self) -> None:
        """Return when no life is carried any more."""
        while self._supervisors:
            self._rested = anyio.Event()
            await self._rested.wait()

    async def _tick(self) -> None:
        """Sleep until the kernel's next alarm, or until an earlier one is set."""
        while True:
            self._sleeping_until = self.kernel.next_alarm()
            self._alarm = anyio.Event()
            delay = self._sleeping_until - self.now()
            if delay > 0:
                with anyio.move_on_after(delay if delay < math.inf else None):
                    await self._alarm.wait()
            self._sleeping_until = -math.inf
            if self.kernel.next_alarm() <= self.now():
                self.post(TimePassed())
            await anyio.lowlevel.checkpoint()

    async def _net(self) -> None:
        """Once a second while a ticket waits, look whether anything was missed (R-33)."""
        while True:
            await anyio.sleep(_NET_S)
            if self.kernel.state.waiting or self.kernel.state.stalled:
                self.post(TimePassed(net=True))

    async def _resolve(self, spec: DeploymentSpec) -> None:
        try:
            prospect = await self.threads(self.resolver.resolve, spec)
        except StokerError as error:
            self.post(Unresolved(spec.name, spec, error))
        else:
            self.post(Resolved(spec.name, spec, prospect))

    async def _fetch_generations(self) -> None:
        """The next block is stored before its first number is used (S-2); a journal that cannot, stops new starts."""
        try:
            while True:
                try:
                    block = await self.journal.generation_block()
                except HostError:
                    await anyio.sleep(1.0)
                    continue
                self.post(GenerationsStored(block.start, len(block)))
                return
        finally:
            self._fetching = False

    async def _write_hold(self, deployment: str, replica: int, hold: Hold | None) -> None:
        try:
            if hold is None:
                await self.journal.clear_hold(deployment, replica)
            else:
                await self.journal.write_hold(hold)
        except HostError as error:
            self.kernel.state.warnings.append(error.message)

    async def _write_operation(self, row: OperationRow) -> None:
        try:
            await self.journal.write_operation(row)
        except HostError as error:
            self.kernel.state.warnings.append(error.message)
