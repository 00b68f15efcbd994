"""The whole runtime on virtual time, with a seeded scheduler and scripted faults (PUBLIC).

A `Simulation` runs the same kernel, supervisors, bus and reconciler as the daemon, on a fake machine that outlives
them: the daemon can be killed at any await and started again. A day passes in milliseconds, and a seed repeats every
interleaving. After each step of the kernel the promises are checked; the first breach ends the run with its seed.

    sim = Simulation(seed=7, models={"a": 600, "b": 600}, budget_mib=1000, faults=(CrashAt(5.0, "a", life=1),))
    sim.run(scenario)          # async def scenario(sim): await sim.request("a", 0.5) ...
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import trio
import trio.testing

from stoker.domain.deployments import DeploymentSpec
from stoker.errors import StokerError
from stoker.ids import RAM, DeploymentName, Generation, Instance, RequestId
from stoker.ports.units import ProcessIdentity, UnitPlan
from stoker.runtime import inputs
from stoker.runtime.assembly import Choices, Ports, assemble
from stoker.runtime.launching import Life
from stoker.runtime.readiness import Patience
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
from stoker.testing.faults import DaemonKilled, Fault, FaultPlan
from stoker.testing.promises import Promises, check_stories
from stoker.testing.simulated import (
    KilledError,
    Mortal,
    SimulatedClock,
    SimulatedDaemon,
    SimulatedHttp,
    Steps,
    at_once,
    deterministic,
)  # fmt: skip

_BYTE_EVERY_S = 1.0


class PromiseBrokenError(AssertionError):
    """An invariant does not hold; the sentence says which, when and for which seed."""


class DaemonDownError(RuntimeError):
    """Nobody answers: the daemon was killed and has not been started again."""


@dataclass(slots=True)
class Outcome:
    """What a simulated client got: ``answered``, or the code of its refusal, or the end it met."""

    model: str
    asked_at: float
    ended_at: float = math.nan
    result: str = "pending"
    generation: int | None = None
    granted_at: float = math.nan
    error: StokerError | None = None

    @property
    def waited_s(self) -> float:
        return self.granted_at - self.asked_at


class Simulation:
    """A machine, a daemon and its clients. All times are virtual seconds.

    ``models``: MiB each costs. ``script`` says how each life goes (the default starts in 0.3 s and obeys); ``faults``
    is a plan on top of it. ``specs``: further keys of a deployment. ``adapter``: the fake engine's own words.
    """

    def __init__(
        self,
        *,
        seed: int,
        models: dict[str, int],
        budget_mib: int,
        script: Callable[[UnitPlan], Script] = lambda _: Script(),
        faults: Sequence[Fault] = (),
        specs: dict[str, dict[str, Any]] | None = None,
        limits: inputs.Limits | None = None,
        patience: Patience | None = None,
        adapter: FakeAdapter | None = None,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.host = FakeHost()
        self.journal = FakeJournal(delay_s=0.002)
        self.models = FakeModels({name: fake_model(name, mib) for name, mib in models.items()})
        self.devices = FakeDevices()
        self.http = SimulatedHttp(self.host)
        self.outcomes: list[Outcome] = []
        self.events: list[dict[str, Any]] = []
        self.script = script
        self.budget_bytes = budget_mib * MIB
        self._plan = FaultPlan(tuple(faults))
        self._limits, self._patience = limits or inputs.Limits(), patience or Patience()
        self._adapter = adapter or FakeAdapter()
        self._specs = [_spec(name, mib, (specs or {}).get(name, {})) for name, mib in models.items()]
        self._daemon: SimulatedDaemon | None = None
        self._nursery: trio.Nursery | None = None
        self._steps: Steps | None = None
        self._breach: PromiseBrokenError | None = None
        self._ghosts: set[Generation] = set()
        self._requests = 0
        self._runs = 0
        self.promises: Promises | None = None

    @property
    def runtime(self) -> Runtime:
        """The runtime of the daemon that lives.

        Raises:
            DaemonDownError: there is none.
        """
        if self._daemon is None or self._daemon.is_dead:
            raise DaemonDownError("the daemon is down")
        return self._daemon.runtime

    @property
    def is_up(self) -> bool:
        """A daemon lives and has opened."""
        return self._daemon is not None and self._daemon.is_open and not self._daemon.is_dead

    @property
    def now(self) -> float:
        return trio.current_time()

    @property
    def upstreams(self) -> FakeUpstreams:
        assert self._daemon is not None
        return self._daemon.upstreams

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, scenario: Callable[[Simulation], Awaitable[None]], *, limit_s: float = 86_400.0) -> None:
        """Run ``scenario`` with a daemon up, then shut down and check that nothing is left.

        Raises:
            PromiseBrokenError: the first breach, whoever may have swallowed it. Any other error is the scenario's own;
                both carry a note with the seed and how to repeat it.
        """

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                with trio.fail_after(limit_s):
                    await self.start_daemon()
                    for nth in self._plan.failed_writes():
                        self.journal.fail(nth)
                    async with trio.open_nursery() as faults:
                        for kill in self._plan.kills():
                            faults.start_soon(self._kill_and_restart, kill)
                        await scenario(self)
                    await self.shut_down()
                nursery.cancel_scope.cancel()

        try:
            with deterministic(self.seed):
                trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        except BaseException as error:
            if self._breach is not None:
                raise self._breach from error
            error.add_note(self._how_to_repeat())
            raise
        if self._breach is not None:
            raise self._breach

    def _how_to_repeat(self) -> str:
        return f"simulation seed {self.seed}; to repeat it: make sim SEED={self.seed}"

    def broken(self, sentence: str) -> NoReturn:
        """A promise does not hold: the run ends, even if somebody catches this."""
        told = PromiseBrokenError(f"seed {self.seed}: at {trio.current_time():.3f} s {sentence}")
        told.add_note(self._how_to_repeat())
        self._breach = self._breach or told
        raise told

    async def start_daemon(self) -> bool:
        """A new run on the same machine and journal: reconciles, then opens. False: it was killed before."""
        assert self._nursery is not None
        if self._daemon is not None:
            await self._daemon.ended.wait()
        self._runs += 1
        daemon: SimulatedDaemon = await self._nursery.start(self._live)
        await daemon.settled.wait()
        return self.is_up

    async def _live(self, *, task_status: trio.TaskStatus[SimulatedDaemon]) -> None:
        instance = Instance(f"run{self._runs}")
        wall = self.host.wall + self.now
        scope_id = await self.journal.open(instance, ProcessIdentity(self._runs, 1, "boot"), "0", wall)
        units = FakeUnits(
            self.host,
            scope_id,
            lambda plan: self._plan.script(plan, self.script(plan)),
            seed=self.seed + self._runs,
            jitter_s=0.02,
        )
        daemon = SimulatedDaemon(units, trio.CancelScope(), FakeUpstreams())
        ports = self._ports(daemon)
        folders = Life("/lives", "/logs", "/caches", make_folder=lambda _: None, list_folders=lambda _: ())
        choices = Choices(folders, limits=self._limits, patience=self._patience, budget=self.budget_bytes)
        daemon.built = assemble(
            ports, choices, scope=scope_id, instance=instance, version="0", hardware=self.devices.read()
        )
        self.promises = Promises(
            daemon.built, self.host, ghosts=self._ghosts, broken=self.broken, is_over=lambda: daemon.is_dead,
            told=self.events.append,
        )  # fmt: skip
        self._daemon = daemon
        task_status.started(daemon)
        try:
            with daemon.scope:
                async with trio.open_nursery() as tasks:
                    await tasks.start(_run_carrier, daemon.runtime)
                    await self._open(daemon, ports)
                    await trio.sleep_forever()
        except BaseExceptionGroup as group:
            _, rest = group.split(KilledError)
            if rest is not None or not daemon.is_dead:
                raise
        except KilledError:
            if not daemon.is_dead:
                raise
        finally:
            daemon.settled.set()
            daemon.ended.set()

    def _ports(self, daemon: SimulatedDaemon) -> Ports:
        return Ports(
            clock=SimulatedClock(self.host, self.random),
            units=Mortal(daemon.units, daemon),
            journal=Mortal(self.journal, daemon),
            models=self.models,
            devices=self.devices,
            probes=self.http,
            threads=at_once,
            upstreams=daemon.upstreams,
            adapters=(self._adapter,),
            installations=lambda: (fake_installation(),),
        )

    async def _open(self, daemon: SimulatedDaemon, ports: Ports) -> None:
        runtime = daemon.runtime
        for spec in self._specs:
            runtime.put_deployment(spec)
        runtime.carrier.post(inputs.OperationsRead(await ports.journal.operations()))
        reconciler = Reconciler(runtime.carrier, ports.journal, ports.units, runtime.logbook.folders)
        await reconciler.run(ports.clock.wall())
        block = await ports.journal.generation_block()
        runtime.carrier.post(inputs.GenerationsStored(block.start, len(block)))
        runtime.carrier.post(inputs.Opened(dict(reconciler.counts)))
        daemon.is_open = True
        daemon.settled.set()

    # -- death -----------------------------------------------------------------------------------------------------

    async def kill_daemon(self) -> None:
        """``kill -9``: its tasks stop where they are, its units end by their guardians, its clients are cut."""
        assert self._daemon is not None
        self._strike()
        await self._daemon.ended.wait()

    def kill_at_step(self, step: int | None) -> Steps:
        """From now on count every step any task takes; right before the ``step``-th the daemon is killed.

        A step is what runs between two awaits: over all ``step`` a scenario is killed at each of its awaits. Steps
        without a daemon do not count. None only counts, which tells how many there are.
        """
        return self._at_step(step, self._strike, lambda: self._daemon is not None and not self._daemon.is_dead)

    def at_step(self, step: int | None, act: Callable[[], None]) -> Steps:
        """As `kill_at_step`, for any synchronous ``act``: a cancellation, a fault."""
        return self._at_step(step, act, lambda: True)

    def _at_step(self, step: int | None, act: Callable[[], None], counts: Callable[[], bool]) -> Steps:
        self.forget_steps()
        self._steps = Steps(step, act, counts)
        trio.lowlevel.add_instrument(self._steps)
        return self._steps

    def forget_steps(self) -> None:
        if self._steps is not None:
            trio.lowlevel.remove_instrument(self._steps)
            self._steps = None

    def _strike(self) -> None:
        daemon = self._daemon
        if daemon is None or daemon.is_dead:
            return
        daemon.is_dead = True
        self.journal.instance = None
        self.host.kill_daemon(daemon.units)
        daemon.scope.cancel()
        for holders in list(daemon.upstreams.holders.values()):
            for ended in holders:
                ended("killed")
        for ticket in list(daemon.runtime.kernel.state.waiting.values()):
            ticket.wake(ticket)
        daemon.died.set()
        daemon.settled.set()

    async def while_alive(self, act: Callable[[], Awaitable[object]]) -> bool:
        """Carry out ``act``; it is cut off when the daemon dies. True if it came to its end before."""
        assert self._daemon is not None
        daemon = self._daemon

        async def cut(scope: trio.CancelScope) -> None:
            await daemon.died.wait()
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut, nursery.cancel_scope)
            try:
                await act()
            except DaemonDownError:
                if not daemon.is_dead:
                    raise
            nursery.cancel_scope.cancel()
        return not daemon.is_dead

    async def _kill_and_restart(self, kill: DaemonKilled) -> None:
        await trio.sleep(kill.at_s)
        await self.kill_daemon()
        await trio.sleep(kill.down_s)
        await self.start_daemon()

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

    async def request(
        self, model: str, service_s: float = 0.2, *, patience_s: float = math.inf, streams: bool = False, **ask: Any
    ) -> Outcome:
        """One client: asks, is served for ``service_s``, leaves; gives up after ``patience_s`` in all.

        ``streams``: a byte of its answer arrives every second (S-109); else only at the end.
        """
        daemon = self._daemon
        assert daemon is not None
        outcome = Outcome(model, self.now)
        self.outcomes.append(outcome)
        self._requests += 1
        request_id = RequestId(ask.pop("request_id", f"req_{self._requests}"))
        woken = trio.Event()
        end, ticket = End.CLIENT_GONE, None
        try:
            with trio.move_on_after(patience_s):
                try:
                    if daemon.is_dead:
                        return outcome
                    wanted = Ask(request_id, DeploymentName(model), **ask)
                    ticket = daemon.runtime.ask(wanted, lambda _: woken.set())
                except StokerError as refused:
                    outcome.result, outcome.error = str(refused.code), refused
                    return outcome
                while ticket.state is TicketState.WAITING and not daemon.is_dead:
                    await woken.wait()
                end = await self._use(daemon, ticket, outcome, service_s, streams=streams)
        finally:
            outcome.ended_at = self.now
            if outcome.result == "pending":
                outcome.result = "killed" if daemon.is_dead else "gave-up"
            if ticket is not None and not daemon.is_dead:
                daemon.runtime.leave(ticket, end)
        return outcome

    async def _use(
        self, daemon: SimulatedDaemon, ticket: Ticket, outcome: Outcome, service_s: float, *, streams: bool
    ) -> End:
        if ticket.state is not TicketState.GRANTED:
            outcome.error = ticket.error
            outcome.result = str(ticket.error.code) if ticket.error is not None else "killed"
            return End.REFUSED
        assert ticket.door is not None
        outcome.generation, outcome.granted_at = int(ticket.door.generation), self.now
        broke = trio.Event()
        codes: list[str] = []

        def ended(code: str) -> None:
            codes.append(code)
            broke.set()

        if not daemon.upstreams.hold(ticket.door.generation, ended):
            self.broken(f"granted a place at {ticket.door.generation}, whose door is closed")
        until = self.now + service_s
        while self.now < until and not codes:
            with trio.move_on_after(min(until - self.now, _BYTE_EVERY_S) if streams else until - self.now):
                await broke.wait()
            if streams and not codes:
                ticket.door.activity.last_byte_at = self.now
        if codes:
            outcome.result = codes[0]
            return End.ENGINE_BROKE
        outcome.result = "answered"
        return End.COMPLETE

    # -- looking ---------------------------------------------------------------------------------------------------

    def check_lives(self) -> None:
        """S-22, over the whole run."""
        check_stories(self.events, self._told_wrong)

    def _told_wrong(self, sentence: str) -> NoReturn:
        told = PromiseBrokenError(f"seed {self.seed}: {sentence}")
        told.add_note(self._how_to_repeat())
        raise told

    def told(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Every event of that name whose fields have these values, in order."""
        return [
            event
            for event in self.events
            if event["event"] == name and all(event.get(key) == value for key, value in fields.items())
        ]

    def starts(self, model: str | None = None) -> int:
        """How often the host was asked to start a unit (of that model)."""
        wanted = {plan.generation for plan in self._plans() if model in {None, plan.deployment}}
        return sum(call.name == "start" and call.generation in wanted for call in self.host.calls)

    def _plans(self) -> list[UnitPlan]:
        return [call.argument for call in self.host.calls if isinstance(call.argument, UnitPlan)]


def _spec(name: str, mib: int, more: dict[str, Any]) -> DeploymentSpec:
    chosen = {"slots": 2, **more}
    return DeploymentSpec(DeploymentName(name), name, declared_bytes=mib * MIB, origin="file", **chosen)


async def _run_carrier(runtime: Runtime, *, task_status: trio.TaskStatus[None]) -> None:
    await runtime.carrier.run(task_status=task_status)
