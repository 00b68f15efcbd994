"""The outside of one simulated daemon: clock, engines' HTTP, ports that die with it, and a scheduler from a seed.

Used by `stoker.testing.simulation` alone.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import trio
from trio._core import _run

from stoker.ports.units import Endpoint
from stoker.ports.upstream import NoReply, Reply
from stoker.runtime.wiring import Runtime
from stoker.testing.fake_engineering import FakeUpstreams
from stoker.testing.fake_units import FakeHost, FakeUnit, FakeUnits

T = TypeVar("T")


class KilledError(BaseException):
    """What a dead daemon's calls end in."""


@dataclass(eq=False)
class SimulatedDaemon:
    """One simulated run of the daemon. ``settled`` is set once it is open, or dead before it was."""

    units: FakeUnits
    scope: trio.CancelScope
    upstreams: FakeUpstreams
    built: Runtime | None = None
    is_dead: bool = False
    is_open: bool = False
    settled: trio.Event = field(default_factory=trio.Event)
    died: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def runtime(self) -> Runtime:
        assert self.built is not None
        return self.built


class SimulatedClock:
    """Wall time of the fake machine; tokens and jitter from the simulation's seed."""

    def __init__(self, host: FakeHost, chance: random.Random) -> None:
        self._host, self._chance = host, chance

    def wall(self) -> float:
        return self._host.wall + trio.current_time()

    def token(self, bytes_: int = 16) -> str:
        return f"{self._chance.getrandbits(bytes_ * 8):0{bytes_ * 2}x}"

    def jitter(self) -> float:
        return self._chance.random()


class Mortal:
    """A port of one daemon: after its death nothing is called, and no call that was under way comes back."""

    def __init__(self, port: Any, life: SimulatedDaemon) -> None:
        self._port, self._life = port, life

    def __getattr__(self, name: str) -> Any:
        if self._life.is_dead:
            raise KilledError
        found = getattr(self._port, name)
        if not callable(found):
            return found
        return self._awaited(found) if inspect.iscoroutinefunction(found) else self._called(found)

    def _called(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._life.is_dead:
                raise KilledError
            return found(*arguments, **named)

        return call

    def _awaited(self, found: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            if self._life.is_dead:
                raise KilledError
            try:
                return await found(*arguments, **named)
            finally:
                if self._life.is_dead:
                    raise KilledError

        return call


class SimulatedHttp:
    """The engines' HTTP: the unit at that socket answers as its script and its age say.

    A listener answers 200 everywhere but on its readiness route, which says 503 until the engine has warmed up.
    """

    def __init__(self, host: FakeHost) -> None:
        self._host = host

    async def call(
        self, endpoint: Endpoint, method: str, path: str, *, timeout_s: float = 2.0, **_: Any
    ) -> Reply | NoReply:
        await anyio.sleep(0.001)
        unit = self._unit(endpoint)
        age_s = -1.0 if unit is None else anyio.current_time() - unit.started_at_s
        if unit is None or age_s < unit.script.listens_after_s:
            return NoReply("refused")
        if any(begin_s <= age_s < end_s for begin_s, end_s in unit.script.deaf):
            await anyio.sleep(timeout_s)
            return NoReply("timeout")
        warm = age_s >= unit.script.listens_after_s + unit.script.warms_up_s
        return Reply(200 if warm or path != "/health" else 503, {}, b"{}", 1.0)

    def _unit(self, endpoint: Endpoint) -> FakeUnit | None:
        at = (unit for unit in self._host.alive() if endpoint.socket == f"{unit.plan.life_dir}/e.sock")
        return next(at, None)


async def at_once(act: Callable[..., T], *arguments: object) -> T:
    """The threads of a simulation: blocking calls are instant."""
    await trio.lowlevel.checkpoint()
    return act(*arguments)


class Steps(trio.abc.Instrument):
    """Counts every step that any task takes while ``counts``; right before the ``act_at``-th one ``act`` is called."""

    def __init__(self, act_at: int | None, act: Callable[[], None], counts: Callable[[], bool]) -> None:
        self.taken = 0
        self._act_at, self._act, self._counts = act_at, act, counts

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._counts():
            return
        self.taken += 1
        if self.taken == self._act_at:
            self._act()


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Trio's scheduler from a seed: the order in which ready tasks run repeats with it."""
    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()  # noqa: SLF001
    vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
    _run._r.seed(seed)  # noqa: SLF001
    try:
        yield
    finally:
        vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = before[0]
        _run._r.setstate(before[1])  # noqa: SLF001
