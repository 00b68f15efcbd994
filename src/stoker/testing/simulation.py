"""The whole runtime on virtual time, with a seeded scheduler and scripted faults (PUBLIC).

A `Simulation` runs the same kernel, supervisors, bus and reconciler as the daemon, on a fake machine that outlives
them: the daemon can be killed at any await and started again. A day passes in milliseconds, and a seed repeats every
interleaving. After each step of the kernel the promises are checked; the first breach ends the run with its seed.

    sim = Simulation(seed=7, models={"a": 600, "b": 600}, budget_mib=1000)
    sim.run(scenario)          # async def scenario(sim): await sim.request("a", 0.5) ...
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import trio
import trio.testing

from stoker.domain.deployments import DeploymentSpec
from stoker.domain.events import faults_of
from stoker.domain.session import Phase
from stoker.errors import StokerError
from stoker.ids import RAM, DeploymentName, Instance, RequestId
from stoker.ports.units import ProcessIdentity, UnitPlan
from stoker.ports.upstream import NoReply, Reply
from stoker.runtime import inputs
from stoker.runtime.assembly import Choices, Ports, assemble
from stoker.runtime.effects import KernelFault
from stoker.runtime.launching import Life
from stoker.runtime.reconciler import Reconciler
from stoker.runtime.tickets import Ask, End, Ticket, TicketState
from stoker.runtime.wiring import Runtime
from stoker.testing.fake_engineering import (
    MIB,
    FakeAdapter,
    FakeDevices,
    FakeModels,
    FakeUpstreams,
    fake_installation,
    fake_model,
)  # fmt: skip
from stoker.testing.fake_journal import FakeJournal
from stoker.testing.fake_units import FakeHost, FakeUnits, Script

T = TypeVar("T")
_READY_AFTER_LISTENING_S = 0.2


class PromiseBrokenError(AssertionError):
    """An invariant does not hold; the sentence says which, where and for which seed."""


class _KilledError(BaseException):
    """What a dead daemon's calls end in."""


@dataclass(slots=True)
class Outcome:
    """What a simulated client got: ``answered``, or the code of its refusal, or the end it met."""

    model: str
    asked_at: float
    ended_at: float = math.nan
    result: str = "pending"
    generation: int | None = None


class _Clock:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    def wall(self) -> float:
        return self._sim.host.wall + trio.current_time()

    def token(self, bytes_: int = 16) -> str:
        return f"{self._sim.random.getrandbits(bytes_ * 8):0{bytes_ * 2}x}"

    def jitter(self) -> float:
        return self._sim.random.random()


class _Mortal:
    """A port of one daemon: after its death every call ends there, so nothing is done from beyond."""

    def __init__(self, port: Any, life: _Daemon) -> None:
        self._port, self._life = port, life

    def __getattr__(self, name: str) -> Any:
        if self._life.is_dead:
            raise _KilledError
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            if self._life.is_dead:
                raise _KilledError
            return found(*arguments, **named)

        return call


class _Probes:
    """The engines' HTTP: answers when the unit at that socket listens and has had its time to load."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    async def call(self, endpoint: Any, method: str, path: str, **_: Any) -> Reply | NoReply:
        await anyio.sleep(0.001)
        for unit in self._sim.host.alive():
            ready_at = unit.started_at_s + unit.script.listens_after_s + _READY_AFTER_LISTENING_S
            if endpoint.socket == f"{unit.plan.life_dir}/e.sock" and trio.current_time() >= ready_at:
                return Reply(200, {}, b"{}", 1.0)
        return NoReply("refused")


async def _at_once(act: Callable[..., T], *arguments: object) -> T:
    await trio.lowlevel.checkpoint()
    return act(*arguments)


@dataclass(eq=False)
class _Daemon:
    """One simulated run of the daemon."""

    units: FakeUnits
    runtime: Runtime
    scope: trio.CancelScope
    upstreams: FakeUpstreams
    opened: trio.Event
    is_dead: bool = False
    ended: trio.Event = field(default_factory=trio.Event)


class Simulation:
    """``script`` says how each life goes; the default starts in 0.3 s and obeys. All times are virtual seconds."""

    def __init__(
        self,
        *,
        seed: int,
        models: dict[str, int],
        budget_mib: int,
        script: Callable[[UnitPlan], Script] = lambda _: Script(),
        specs: dict[str, dict[str, Any]] | None = None,
        limits: inputs.Limits | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.host = FakeHost()
        self.journal = FakeJournal(delay_s=0.002)
        self.models = FakeModels({name: fake_model(name, mib) for name, mib in models.items()})
        self.devices = FakeDevices()
        self.outcomes: list[Outcome] = []
        self.events: list[dict[str, Any]] = []
        self.script = script
        self.budget_bytes = budget_mib * MIB
        self._limits = limits or inputs.Limits()
        self._specs = [self._spec(name, mib, (specs or {}).get(name, {})) for name, mib in models.items()]
        self._daemon: _Daemon | None = None
        self._nursery: trio.Nursery | None = None
        self._requests = 0
        self._runs = 0

    @staticmethod
    def _spec(name: str, mib: int, more: dict[str, Any]) -> DeploymentSpec:
        chosen = {"slots": 2, **more}
        return DeploymentSpec(DeploymentName(name), name, declared_bytes=mib * MIB, origin="file", **chosen)

    @property
    def runtime(self) -> Runtime:
        assert self._daemon is not None
        return self._daemon.runtime

    @property
    def now(self) -> float:
        return trio.current_time()

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, scenario: Callable[[Simulation], Awaitable[None]], *, limit_s: float = 86_400.0) -> None:
        """Run ``scenario`` with a daemon up, then shut down and check that nothing is left."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                with trio.fail_after(limit_s):
                    await self.start_daemon()
                    await scenario(self)
                    await self.shut_down()
                nursery.cancel_scope.cancel()

        with _deterministic(self.seed):
            trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    async def start_daemon(self) -> None:
        """A new run on the same machine and journal: reconciles, then opens."""
        assert self._nursery is not None
        self._runs += 1
        daemon = await self._nursery.start(self._live)
        await daemon.opened.wait()

    async def _live(self, *, task_status: trio.TaskStatus[_Daemon]) -> None:
        instance = Instance(f"run{self._runs}")
        clock = _Clock(self)
        scope_id = await self.journal.open(instance, ProcessIdentity(self._runs, 1, "boot"), "0", clock.wall())
        units = FakeUnits(
            self.host,
            scope_id,
            lambda plan: self.script(plan),  # noqa: PLW0108 - may be replaced
            seed=self.seed + self._runs,
            jitter_s=0.02,
        )
        upstreams = FakeUpstreams()
        daemon = _Daemon(units, None, trio.CancelScope(), upstreams, trio.Event())  # type: ignore[arg-type]
        ports = Ports(
            clock=clock,
            units=_Mortal(units, daemon),
            journal=_Mortal(self.journal, daemon),
            models=self.models,
            devices=self.devices,
            probes=_Probes(self),
            threads=_at_once,
            upstreams=upstreams,
            adapters=(FakeAdapter(),),
            installations=lambda: (fake_installation(),),
        )
        folders = Life("/lives", "/logs", "/caches", make_folder=lambda _: None, list_folders=lambda _: ())
        choices = Choices(folders, limits=self._limits, budget=self.budget_bytes)
        daemon.runtime = assemble(
            ports, choices, scope=scope_id, instance=instance, version="0", hardware=self.devices.read()
        )
        self._watch(daemon)
        self._daemon = daemon
        try:
            with daemon.scope:
                async with trio.open_nursery() as tasks:
                    await tasks.start(_run_carrier, daemon.runtime)
                    task_status.started(daemon)
                    await self._open(daemon, ports)
                    await trio.sleep_forever()
        except BaseExceptionGroup as group:
            _, rest = group.split(_KilledError)
            if rest is not None or not daemon.is_dead:
                raise
        except _KilledError:
            if not daemon.is_dead:
                raise
        finally:
            daemon.ended.set()

    async def _open(self, daemon: _Daemon, ports: Ports) -> None:
        runtime = daemon.runtime
        for spec in self._specs:
            runtime.put_deployment(spec)
        reconciler = Reconciler(runtime.carrier, ports.journal, ports.units, runtime.logbook.folders)
        await reconciler.run(ports.clock.wall())
        block = await ports.journal.generation_block()
        runtime.carrier.post(inputs.GenerationsStored(block.start, len(block)))
        runtime.carrier.post(inputs.Opened(dict(reconciler.counts)))
        daemon.opened.set()

    async def kill_daemon(self) -> None:
        """``kill -9``: its tasks stop where they are, its units end by their guardians, its clients are cut."""
        daemon = self._daemon
        assert daemon is not None
        daemon.is_dead = True
        self.host.kill_daemon(daemon.units)
        daemon.scope.cancel()
        for holders in list(daemon.upstreams.holders.values()):
            for ended in holders:
                ended("killed")
        for ticket in list(daemon.runtime.kernel.state.waiting.values()):
            ticket.wake(ticket)
        await daemon.ended.wait()
        self.journal.instance = None

    async def shut_down(self, bound_s: float = 300.0) -> None:
        """An orderly stop; afterwards nothing runs and nothing is reserved."""
        runtime = self.runtime
        runtime.carrier.post(inputs.BeginShutdown())
        with trio.move_on_after(bound_s):
            await runtime.carrier.until(lambda: not runtime.kernel.state.sessions)
        if runtime.kernel.state.sessions:
            left = {int(g): str(s.phase) for g, s in runtime.kernel.state.sessions.items()}
            self.broken(f"sessions are left {bound_s:.0f} s after the shutdown began: {left}")
        if runtime.kernel.state.ledger.reserved(RAM):
            self.broken("bytes are reserved though no session is left")
        if self.host.alive():
            self.broken(f"units are alive after the shutdown: {[u.plan.generation for u in self.host.alive()]}")
        pending = [outcome for outcome in self.outcomes if outcome.result == "pending"]
        if pending:
            self.broken(f"clients still wait: {pending}")

    # -- clients ---------------------------------------------------------------------------------------------------

    async def request(self, model: str, service_s: float = 0.2, *, patience_s: float = math.inf, **ask: Any) -> Outcome:
        """One client: asks, is served for ``service_s``, leaves; gives up after ``patience_s`` in all."""
        daemon = self._daemon
        assert daemon is not None
        runtime = daemon.runtime
        outcome = Outcome(model, self.now)
        self.outcomes.append(outcome)
        self._requests += 1
        woken = trio.Event()
        end, ticket = End.CLIENT_GONE, None
        try:
            with trio.move_on_after(patience_s):
                try:
                    ticket = runtime.ask(
                        Ask(RequestId(f"req_{self._requests}"), DeploymentName(model), **ask), lambda _: woken.set()
                    )
                except StokerError as refused:
                    outcome.result = str(refused.code)
                    return outcome
                while ticket.state is TicketState.WAITING and not daemon.is_dead:
                    await woken.wait()
                end = await self._use(daemon, ticket, outcome, service_s)
        finally:
            outcome.ended_at = self.now
            if outcome.result == "pending":
                outcome.result = "killed" if daemon.is_dead else "gave-up"
            if ticket is not None and not daemon.is_dead:
                runtime.leave(ticket, end)
        return outcome

    async def _use(self, daemon: _Daemon, ticket: Ticket, outcome: Outcome, service_s: float) -> End:
        if ticket.state is not TicketState.GRANTED:
            outcome.result = str(ticket.error.code) if ticket.error is not None else "killed"
            return End.REFUSED
        assert ticket.generation is not None
        outcome.generation = int(ticket.generation)
        broke = trio.Event()
        codes: list[str] = []

        def ended(code: str) -> None:
            codes.append(code)
            broke.set()

        if not daemon.upstreams.hold(ticket.generation, ended):
            self.broken(f"granted a place at {ticket.generation}, whose door is closed")
        with trio.move_on_after(service_s):
            await broke.wait()
        if codes:
            outcome.result = codes[0]
            return End.ENGINE_BROKE
        outcome.result = "answered"
        return End.COMPLETE

    # -- promises --------------------------------------------------------------------------------------------------

    def broken(self, sentence: str) -> None:
        raise PromiseBrokenError(f"seed {self.seed}: at {trio.current_time():.3f} s {sentence}")

    def _watch(self, daemon: _Daemon) -> None:
        bus = daemon.runtime.bus
        publish = bus.publish

        def published(event: Any) -> None:
            publish(event)
            flat = event.flat()
            problems = faults_of(event)
            if problems:
                self.broken(f"event {flat['event']} does not match its table: {problems}")
            self.events.append(flat)

        bus.publish = published  # type: ignore[method-assign]
        kernel = daemon.runtime.kernel
        drain = kernel.drain

        def drained() -> Any:
            self.check(daemon)
            return drain()

        kernel.drain = drained  # type: ignore[method-assign]

    def check(self, daemon: _Daemon) -> None:
        """The promises, after a step of the kernel."""
        if daemon.is_dead:
            return
        state = daemon.runtime.kernel.state
        for pool in state.ledger.budgets:
            if state.ledger.overdraft(pool) > 0:
                self.broken(f"{pool} is over-committed by {state.ledger.overdraft(pool)} bytes")
        held = {generation for generation, s in state.sessions.items() if s.phase is not Phase.GONE}
        if set(state.ledger.reservations) != held:
            self.broken(f"reservations {sorted(state.ledger.reservations)} are not the sessions {sorted(held)}")
        if state.phase == "ready":
            alive = {unit.plan.generation for unit in self.host.alive()}
            if not alive <= held:
                self.broken(f"units {sorted(alive - held)} run but hold no reservation")
        self._check_places(daemon)

    def _check_places(self, daemon: _Daemon) -> None:
        state = daemon.runtime.kernel.state
        seen: set[tuple[str, int]] = set()
        for session in state.sessions.values():
            key = (session.state.deployment, session.state.replica)
            if key in seen:
                self.broken(f"replica {key} has two lives")
            seen.add(key)
            if session.grants and session.phase not in {Phase.READY, Phase.DRAINING, Phase.STOPPING}:
                self.broken(f"{session.generation} is {session.phase} and has grants")
        for deployment in state.deployments.values():
            grants = sum(len(session.grants) for session in state.of(deployment))
            if grants != deployment.in_flight:
                self.broken(f"{deployment.name} counts {deployment.in_flight} in flight and has {grants} grants")
            if set(deployment.queue) != set(deployment.tickets):
                self.broken(f"{deployment.name}'s queue and tickets disagree")
        waiting = {t for d in state.deployments.values() for t in d.tickets}
        if waiting != set(state.waiting):
            self.broken("waiting tickets disagree with the queues")

    def check_lives(self) -> None:
        """S-22, over the whole run: one load outcome, at most one crash, one end, the end last."""
        per: dict[int, list[str]] = {}
        for event in self.events:
            if event["event"].startswith("session.") and "generation" in event:
                per.setdefault(event["generation"], []).append(event["event"])
        loads = {"session.load-completed", "session.load-failed", "session.load-cancelled"}
        for generation, names in per.items():
            if sum(name in loads for name in names) > 1 or names.count("session.ended") > 1:
                self.broken(f"generation {generation} told its story twice: {names}")
            if names.count("session.crashed") > 1:
                self.broken(f"generation {generation} crashed twice: {names}")
            if "session.ended" in names and names[-1] != "session.ended":
                self.broken(f"generation {generation} spoke after its end: {names}")


async def _run_carrier(runtime: Runtime, *, task_status: trio.TaskStatus[None]) -> None:
    try:
        await runtime.carrier.run(task_status=task_status)
    except BaseExceptionGroup as group:
        faults, _ = group.split(KernelFault)
        if faults is not None:
            raise
        raise


class _deterministic:  # noqa: N801 - reads as a statement
    """Trio's scheduler from a seed: the order in which ready tasks run repeats with it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        from trio._core import _run

        self._before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()  # noqa: SLF001
        vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = True
        _run._r.seed(self._seed)  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        from trio._core import _run

        vars(_run)["_ALLOW_DETERMINISTIC_SCHEDULING"] = self._before[0]
        _run._r.setstate(self._before[1])  # noqa: SLF001
