"""`FakeUnits`: a scripted host in virtual time, for simulations and for the contract suite.

A `FakeHost` is the machine: it outlives every `FakeUnits` made on it, so a simulated daemon can die and its successor
meet what was left. Nothing runs in the background: a unit's state follows from its script and the loop's clock, and
only `anyio.sleep` passes time. Chance comes from one seeded generator. Every call is recorded.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Self

import anyio

from stoker.domain.reconcile import Finding, IdentityVerdict
from stoker.ids import Generation, Scope, UnitName, unit_name
from stoker.ports.units import (
    Absent,
    Changing,
    Confirmed,
    Endpoint,
    Exit,
    Exited,
    Found,
    InspectAnswer,
    Kept,
    LogLine,
    PrepareAnswer,
    Prepared,
    PrepareFailed,
    ProcessIdentity,
    RemoveAnswer,
    Removed,
    Running,
    StartAnswer,
    Started,
    StartFailed,
    StopAnswer,
    Survivor,
    Unconfirmed,
    UnconfirmedCause,
    UnitIdentity,
    UnitPlan,
    Usage,
    WaitAnswer,
)

BOOT_ID = "00000000-fake-boot"
START_S = 10.0
_TERM_SIGNAL, _KILL_SIGNAL = 15, 9


@dataclass(frozen=True, slots=True)
class Script:
    """How one life goes. Times are seconds after its start; ``inf`` is never.

    ``start_failures`` are answered by its first starts, in order. ``exits_after_s`` with a finite value is a crash.
    ``unconfirmed_stops`` stops fail to confirm before one succeeds. ``lines`` are (time, stream, text). Its readiness
    route answers 503 for ``warms_up_s`` after it listens; its HTTP hangs during the ``deaf`` spans (from, until).
    """

    prepare_failure: PrepareFailed | None = None
    prepare_delay_s: float = 0.0
    start_delay_s: float = 0.01
    start_failures: tuple[StartFailed, ...] = ()
    start_never_answers: bool = False
    exits_after_s: float = inf
    exit_code: int | None = 1
    exit_signal: int | None = None
    obeys_term_after_s: float = 0.05
    unconfirmed_stops: float = 0
    stop_never_answers: bool = False
    listens_after_s: float = 0.1
    warms_up_s: float = 0.2
    deaf: tuple[tuple[float, float], ...] = ()
    foreign_listener: bool = False
    lines: tuple[tuple[float, str, str], ...] = ()
    usage: Usage | None = field(default_factory=lambda: Usage(anonymous_bytes=1 << 20, mapped_bytes=0))


@dataclass(frozen=True, slots=True)
class Call:
    """One call on the port, as it was begun."""

    at_s: float
    name: str
    generation: Generation | None
    argument: object = None


@dataclass(slots=True)
class FakeUnit:
    """A unit on the fake machine. It has ended when the clock has passed ``ends_at_s``, whoever looks or does not."""

    plan: UnitPlan
    script: Script
    identity: UnitIdentity
    owner: FakeUnits
    started_at_s: float
    ends_at_s: float
    exit: Exit
    unconfirmed_left: float
    changed: anyio.Event = field(default_factory=anyio.Event)

    def is_alive(self) -> bool:
        return anyio.current_time() < self.ends_at_s

    def end_by(self, at_s: float, exit_: Exit) -> None:
        if at_s < self.ends_at_s:
            self.ends_at_s, self.exit = at_s, exit_
            self.changed.set()
            self.changed = anyio.Event()

    async def until_end(self) -> None:
        while self.is_alive():
            with anyio.move_on_after(self.ends_at_s - anyio.current_time()):
                await self.changed.wait()


@dataclass(slots=True)
class FakeHost:
    """The machine: what exists on it, life directories included. ``wall`` is its wall clock at loop time 0.

    Calls named in ``hung`` never answer; the ``breaks_at``-th call from the machine's beginning raises.
    """

    wall: float = 1_800_000_000.0
    hung: set[str] = field(default_factory=set)
    breaks_at: int | None = None
    units: dict[tuple[Scope, Generation], FakeUnit] = field(default_factory=dict)
    folders: dict[str, Generation] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    next_pid: int = 1000

    def alive(self) -> tuple[FakeUnit, ...]:
        """Every unit that runs now, whoever started it: what an invariant compares with the books."""
        return tuple(unit for unit in self.units.values() if unit.is_alive())

    def kill_daemon(self, daemon: FakeUnits) -> None:
        """The process behind ``daemon`` is gone: its units end by themselves within the orphan bound (S-38)."""
        daemon.is_dead = True
        now = anyio.current_time()
        for unit in self.units.values():
            if unit.owner is daemon:
                grace_s = min(unit.script.obeys_term_after_s, unit.plan.orphan_grace_s)
                unit.end_by(now + grace_s, self.exit_at(now + grace_s, None, _KILL_SIGNAL, "us"))

    def exit_at(self, at_s: float, code: int | None, signal: int | None, by: str) -> Exit:
        return Exit(code, signal, None, self.wall + at_s, by)

    def new_identity(self) -> ProcessIdentity:
        self.next_pid += 1
        return ProcessIdentity(self.next_pid, self.next_pid * 10, BOOT_ID)


class _FakeLog:
    """The scripted lines after ``cursor``, each at its time; ends with the unit."""

    def __init__(self, host: FakeHost, unit: FakeUnit | None, cursor: int) -> None:
        self._host = host
        self._unit = unit
        self._cursor = cursor

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogLine:
        unit = self._unit
        if unit is not None and self._cursor < len(unit.script.lines):
            after_s, stream, text = unit.script.lines[self._cursor]
            at_s = unit.started_at_s + after_s
            with anyio.move_on_after(at_s - anyio.current_time()):
                await unit.until_end()
            if at_s <= unit.ends_at_s:
                self._cursor += 1
                return LogLine(self._host.wall + at_s, stream, text, self._cursor)
        elif unit is not None:
            await unit.until_end()
        raise StopAsyncIteration


class FakeUnits:
    """The `Units` of one simulated daemon. ``script`` says how each life goes."""

    def __init__(
        self,
        host: FakeHost,
        scope: Scope,
        script: Callable[[UnitPlan], Script] = lambda _: Script(),
        *,
        kind: str = "process",
        seed: int = 0,
        jitter_s: float = 0.0,
    ) -> None:
        self.kind = kind
        self.is_dead = False
        self._host = host
        self._scope = scope
        self._script = script
        self._random = random.Random(seed)
        self._jitter_s = jitter_s
        self._starts: dict[Generation, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def prepare(self, plan: UnitPlan) -> PrepareAnswer:
        script = self._script(plan)
        await self._call("prepare", plan.generation, plan, script.prepare_delay_s)
        if script.prepare_failure is not None:
            return script.prepare_failure
        self._host.folders[plan.life_dir] = plan.generation
        return Prepared(plan)

    async def start(self, prepared: Prepared, port: int | None) -> StartAnswer:
        plan = prepared.plan
        script = self._script(plan)
        former = self._host.units.get((plan.scope, plan.generation))
        if former is not None and former.is_alive():
            raise ValueError(f"generation {plan.generation} already has a unit")
        attempt = self._starts.get(plan.generation, 0)
        self._starts[plan.generation] = attempt + 1
        await self._call("start", plan.generation, port, script.start_delay_s)
        if script.start_never_answers:
            self._create(plan, script)
            await anyio.sleep(START_S)
            return StartFailed("no-answer", may_exist=True, detail=f"the unit did not start within {START_S:.0f} s")
        if attempt < len(script.start_failures):
            failure = script.start_failures[attempt]
            if failure.may_exist:
                self._create(plan, script)
            return failure
        unit = self._create(plan, script)
        return Started(unit.identity, self._endpoint(plan, port))

    async def inspect(self, unit: UnitIdentity) -> InspectAnswer:
        await self._call("inspect", unit.generation)
        found = self._find(unit)
        if found is None:
            return Absent()
        if found.owner is not self:
            return Changing("orphan-work") if found.is_alive() else Absent()
        return Running() if found.is_alive() else Exited(found.exit)

    async def wait(self, unit: UnitIdentity) -> WaitAnswer:
        await self._call("wait", unit.generation)
        found = self._find(unit)
        if found is None:
            return Absent()
        await found.until_end()
        return Exited(found.exit) if found.owner is self else Absent()

    def logs(self, unit: UnitIdentity, cursor: int = 0) -> AsyncIterator[LogLine]:
        return _FakeLog(self._host, self._find(unit), cursor)

    async def stop(self, unit: UnitIdentity, grace_s: float) -> StopAnswer:
        if grace_s < 0:
            raise ValueError("a grace is not negative")
        await self._call("stop", unit.generation, grace_s)
        found = self._find(unit)
        if found is None:
            return Confirmed(how="absent", exit=None, by="absent")
        if found.script.stop_never_answers:
            await anyio.sleep(grace_s + 7)
            return Unconfirmed(UnconfirmedCause.NO_ANSWER, f"no answer within {grace_s + 7:.0f} s")
        if found.is_alive() and found.unconfirmed_left > 0:
            found.unconfirmed_left -= 1
            await anyio.sleep(grace_s + found.plan.kill_confirm_s)
            if found.is_alive():
                pid = found.identity.main.pid if found.identity.main else 0
                stuck = Survivor(pid, "fake-engine", "D")
                return Unconfirmed(UnconfirmedCause.SURVIVORS, f"still alive after KILL: {pid}", (stuck,))
        self._ask(found, grace_s)
        await found.until_end()
        if found.owner is self:
            return Confirmed(how="exited", exit=found.exit, by="guardian")
        return Confirmed(how="absent", exit=None, by="absent")

    async def remove(self, unit: UnitIdentity) -> RemoveAnswer:
        await self._call("remove", unit.generation)
        found = self._find(unit)
        if found is not None and found.is_alive():
            return Kept("its end is not confirmed")
        folder = found.plan.life_dir if found is not None else unit.life_dir
        self._host.units.pop((self._scope, unit.generation), None)
        return Absent() if self._host.folders.pop(folder or "", None) is None else Removed()

    async def survey(self, scope: Scope) -> tuple[Found, ...]:
        await self._call("survey", None, scope)
        return tuple(
            Found(_name(scope, unit), scope, unit.plan.generation, "running", pids=_pids(unit))
            for unit in self._host.alive()
            if unit.plan.scope == scope
        )

    async def owns_listener(self, unit: UnitIdentity, endpoint: Endpoint) -> bool | None:
        await self._call("owns_listener", unit.generation, endpoint)
        found = self._find(unit)
        if found is None or not found.is_alive():
            return None
        if found.script.foreign_listener:
            return False
        return True if anyio.current_time() >= found.started_at_s + found.script.listens_after_s else None

    async def usage(self, unit: UnitIdentity) -> Usage | None:
        await self._call("usage", unit.generation)
        found = self._find(unit)
        if found is None or not found.is_alive() or found.script.usage is None:
            return None
        return replace(found.script.usage, members=found.identity.members)

    async def recover(self, generation: Generation, life_dir: str) -> UnitIdentity | None:
        await self._call("recover", generation, life_dir)
        found = self._host.units.get((self._scope, generation))
        return found.identity if found is not None and found.plan.life_dir == life_dir else None

    async def inspect_leftover(
        self, unit: UnitIdentity, *, intent_age_s: float | None = None, looked_again: int = 0
    ) -> Finding:
        await self._call("inspect_leftover", unit.generation)
        found = self._find(unit)
        state = IdentityVerdict.SAME if found is not None and found.is_alive() else IdentityVerdict.GONE
        known = found is not None or unit.main is not None
        return Finding(
            kind=self.kind,
            guardian=state if known else None,
            members=(state,) if known else (),
            has_identity=known,
            intent_age_s=intent_age_s,
            looked_again=looked_again,
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _call(
        self, name: str, generation: Generation | None, argument: object = None, delay_s: float = 0.0
    ) -> None:
        if self.is_dead:
            raise RuntimeError(f"{name} was called on a daemon that is dead")
        self._host.calls.append(Call(anyio.current_time(), name, generation, argument))
        if len(self._host.calls) == self._host.breaks_at:
            raise OSError(f"{name} broke")
        if name in self._host.hung:
            await anyio.sleep_forever()
        await anyio.sleep(delay_s + self._jitter_s * self._random.random())

    def _find(self, unit: UnitIdentity) -> FakeUnit | None:
        return self._host.units.get((self._scope, unit.generation))

    def _create(self, plan: UnitPlan, script: Script) -> FakeUnit:
        now = anyio.current_time()
        guardian, main = self._host.new_identity(), self._host.new_identity()
        identity = UnitIdentity(plan.generation, self.kind, guardian, main, (main,), None, plan.life_dir)
        ends_at_s = now + script.exits_after_s
        exit_ = self._host.exit_at(ends_at_s, script.exit_code, script.exit_signal, "engine")
        unit = FakeUnit(plan, script, identity, self, now, ends_at_s, exit_, script.unconfirmed_stops)
        self._host.units[plan.scope, plan.generation] = unit
        if self.is_dead:  # its daemon died while it was being started: its guardian ends it (S-38)
            unit.end_by(now + plan.orphan_grace_s, self._host.exit_at(now, None, _KILL_SIGNAL, "us"))
        return unit

    def _endpoint(self, plan: UnitPlan, port: int | None) -> Endpoint:
        if plan.endpoint.socket is not None or not plan.needs_port:
            return plan.endpoint
        first, last = plan.port_range
        return replace(plan.endpoint, port=port or plan.fixed_port or self._random.randint(first, last))

    def _ask(self, unit: FakeUnit, grace_s: float) -> None:
        now = anyio.current_time()
        if unit.script.obeys_term_after_s <= grace_s:
            after_s, number = unit.script.obeys_term_after_s, _TERM_SIGNAL
        else:
            after_s, number = grace_s, _KILL_SIGNAL
        unit.end_by(now + after_s, self._host.exit_at(now + after_s, None, number, "us"))


def _name(scope: Scope, unit: FakeUnit) -> UnitName:
    return unit_name(scope, unit.plan.generation)


def _pids(unit: FakeUnit) -> tuple[int, ...]:
    return tuple(member.pid for member in unit.identity.members)
