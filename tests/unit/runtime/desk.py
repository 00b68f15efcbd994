"""A desk for kernel tests: the test is the shell, and answers effects at once or holds them back.

No event loop and no time but what the test sets, so every step can be looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from stoker.domain.budget import Ledger
from stoker.domain.deployments import DeploymentSpec
from stoker.domain.session import (
    BecameReady,
    CancelEffects,
    ClaimRoom,
    ExitExplained,
    ExplainExit,
    Failure,
    ForceReleaseRecorded,
    Prepared,
    PrepareUnit,
    RecordForceRelease,
    RoomClaimed,
    Started,
    StartUnit,
    StopConfirmed,
    StopUnit,
    WatchLoad,
)  # fmt: skip
from stoker.errors import StokerError
from stoker.ids import RAM, Generation, Instance, RequestId, Scope
from stoker.ports.engines import Accepted, Capabilities
from stoker.ports.units import Endpoint
from stoker.runtime import inputs
from stoker.runtime.kernel import Kernel
from stoker.runtime.outbox import Announce, Carry, FetchGenerations, Resolve, Wake
from stoker.runtime.resolving import Resolver
from stoker.runtime.state import KernelState
from stoker.runtime.tickets import Ask, End, Ticket
from stoker.testing.fake_engineering import MIB, FakeAdapter, FakeDevices, FakeModels, fake_installation, fake_model


class FixedClock:
    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def wall(self) -> float:
        return self.seconds

    def token(self, bytes_: int = 16) -> str:
        return "t" * bytes_

    def jitter(self) -> float:
        return 0.5


class Desk:
    """``hold`` names effect types that are not answered until the test does it."""

    def __init__(self, budget_mib: int = 1000, limits: inputs.Limits | None = None, **models_mib: int) -> None:
        self.models = FakeModels({name: fake_model(name, mib) for name, mib in models_mib.items()})
        hardware = FakeDevices().read()
        ledger = Ledger({RAM: budget_mib * MIB})
        state = KernelState(
            Scope("0" * 8), Instance("i1"), "0", 0.0, ledger, hardware, iter([Generation(n) for n in range(1, 2000)])
        )
        state.automatic_budgets[RAM] = budget_mib * MIB
        self.kernel = Kernel(state, FixedClock(), limits)
        self.resolver = Resolver(self.models, (FakeAdapter(),), lambda: (fake_installation(),), lambda: hardware)
        self.now = 100.0
        self.events: list[Any] = []
        self.effects: list[Any] = []
        self.held: list[Any] = []
        self.hold: set[type] = set()
        self.woken: list[Ticket] = []
        self._requests = count(1)
        self.post(inputs.Opened())
        for name, mib in models_mib.items():
            self.put(name, mib)

    # -- the shell -------------------------------------------------------------------------------------------------

    def post(self, incoming: Any) -> Any:
        try:
            return self.kernel.apply(incoming, self.now)
        finally:
            self.carry()

    def carry(self) -> None:
        while todo := self.kernel.drain():
            for instruction in todo:
                self._carry(instruction)

    def _carry(self, instruction: Any) -> None:
        match instruction:
            case Announce(event=event):
                self.events.append(event)
            case Wake(ticket=ticket):
                self.woken.append(ticket)
            case Resolve(spec=spec):
                self.answer(instruction, lambda: self._resolve(spec))
            case FetchGenerations():
                self.kernel.apply(inputs.GenerationsStored(10_000, 256), self.now)
            case Carry(effect=effect):
                self.effects.append(effect)
                self.answer(effect, lambda: self._live(effect))
            case _:
                pass

    def _resolve(self, spec: DeploymentSpec) -> None:
        try:
            seen: Any = inputs.Resolved(spec.name, spec, self.resolver.resolve(spec))
        except StokerError as error:
            seen = inputs.Unresolved(spec.name, spec, error)
        self.kernel.apply(seen, self.now)

    def answer(self, effect: Any, act: Callable[[], None]) -> None:
        if type(effect) in self.hold:
            self.held.append((effect, act))
        else:
            act()

    def let_go(self, kind: type | None = None) -> None:
        """Answer everything that was held back (of one kind)."""
        ready = [entry for entry in self.held if kind is None or isinstance(entry[0], kind)]
        self.held = [entry for entry in self.held if entry not in ready]
        for _, act in ready:
            act()
        self.carry()

    def _live(self, effect: Any) -> None:
        generation = effect.generation
        session = self.kernel.state.sessions.get(generation)
        match effect:
            case ClaimRoom():
                seen: Any = RoomClaimed(generation)
            case PrepareUnit():
                seen = Prepared(generation)
            case StartUnit():
                seen = Started(generation, None, Endpoint(socket="/e.sock"))
            case WatchLoad():
                width = session.plan.slots if session and session.plan else 1
                seen = BecameReady(generation, Accepted(width, 4096, Capabilities()))
            case ExplainExit():
                seen = ExitExplained(generation, Failure("engine-exited", "It exited."))
            case StopUnit():
                seen = StopConfirmed(generation, "guardian")
            case RecordForceRelease(by=by):
                seen = ForceReleaseRecorded(generation, by)
            case CancelEffects():
                return
            case _:
                return
        self.kernel.apply(seen, self.now)

    # -- what a test says ------------------------------------------------------------------------------------------

    def put(self, name: str, mib: int | None = None, **more: Any) -> dict[str, Any]:
        mib = mib if mib is not None else self.models.models[name].facts.total_bytes // MIB
        more.setdefault("slots", 1)
        spec = DeploymentSpec(name, name, declared_bytes=mib * MIB, origin="file", **more)  # type: ignore[arg-type]
        answer: dict[str, Any] = self.post(inputs.PutDeployment(spec))
        return answer

    def ask(self, name: str, **more: Any) -> Ticket:
        ask = Ask(RequestId(f"req_{next(self._requests)}"), name, **more)  # type: ignore[arg-type]
        ticket = self.kernel.ask(ask, self.woken.append, self.now)
        self.carry()
        return ticket

    def leave(self, ticket: Ticket, end: End = End.COMPLETE) -> None:
        self.kernel.leave(ticket, end, self.now)
        self.carry()

    def wait(self, seconds: float) -> None:
        """Time passes; every alarm on the way rings."""
        end = self.now + seconds
        while self.kernel.next_alarm() <= end:
            self.now = max(self.now, self.kernel.next_alarm())
            self.post(inputs.TimePassed())
        self.now = end
        self.post(inputs.TimePassed())

    # -- what a test asks ------------------------------------------------------------------------------------------

    def phases(self) -> dict[str, str]:
        return {s.state.deployment: str(s.phase) for s in self.kernel.state.sessions.values()}

    def names(self, prefix: str = "") -> list[str]:
        return [event.event for event in self.events if event.event.startswith(prefix)]

    def starts(self) -> int:
        return sum(isinstance(effect, StartUnit) for effect in self.effects)

    def reserved_mib(self) -> int:
        return self.kernel.state.ledger.reserved(RAM) // MIB
