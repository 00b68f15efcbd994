"""What goes wrong in a simulation, as data: a fault plan (PUBLIC).

Each fault is one frozen record; a plan is a tuple of them. Those about engines name a model (None: all) and the n-th
life of it (None: every one). They change the script of a life; those about the machine are carried out by
`stoker.testing.simulation`. Times are virtual seconds.

    Simulation(..., faults=(SlowStart(30.0, "a"), CrashAt(5.0, "b", life=1), DaemonKilled(at_s=12.0)))
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from stoker.ids import Generation
from stoker.ports.units import UnitPlan
from stoker.testing.fake_units import Script


@dataclass(frozen=True, slots=True)
class SlowStart:
    """The engine listens only ``seconds`` after its start."""

    seconds: float
    model: str | None = None
    life: int | None = None


@dataclass(frozen=True, slots=True)
class CrashAt:
    """The engine dies by ``signal`` ``seconds`` after its start, loading or ready."""

    seconds: float
    model: str | None = None
    life: int | None = None
    signal: int = 11


@dataclass(frozen=True, slots=True)
class StopIgnored:
    """The engine ignores TERM, so that only KILL after the grace ends it."""

    model: str | None = None
    life: int | None = None


@dataclass(frozen=True, slots=True)
class StopUnconfirmed:
    """``times`` stops end without proof before one succeeds; ``inf`` needs a helping hand."""

    times: float = 1
    model: str | None = None
    life: int | None = None


@dataclass(frozen=True, slots=True)
class DaemonKilled:
    """``kill -9`` of the daemon ``at_s`` after the scenario begins; the next run starts ``down_s`` later."""

    at_s: float
    down_s: float = 5.0


@dataclass(frozen=True, slots=True)
class JournalWriteFails:
    """The n-th write of the scenario is refused by the disk."""

    nth: int


UnitFault = SlowStart | CrashAt | StopIgnored | StopUnconfirmed
Fault = UnitFault | DaemonKilled | JournalWriteFails


@dataclass(slots=True)
class FaultPlan:
    """The faults of one simulation, and which life of its model each generation is."""

    faults: tuple[Fault, ...] = ()
    _lives: dict[str, list[Generation]] = field(default_factory=dict)

    def kills(self) -> tuple[DaemonKilled, ...]:
        return tuple(fault for fault in self.faults if isinstance(fault, DaemonKilled))

    def failed_writes(self) -> tuple[int, ...]:
        return tuple(fault.nth for fault in self.faults if isinstance(fault, JournalWriteFails))

    def script(self, plan: UnitPlan, script: Script) -> Script:
        """``script`` with the faults of this life in it; the same for every call about one generation."""
        lives = self._lives.setdefault(plan.deployment, [])
        if plan.generation not in lives:
            lives.append(plan.generation)
        life = lives.index(plan.generation) + 1
        for fault in self.faults:
            if isinstance(fault, UnitFault) and fault.model in {None, plan.deployment} and fault.life in {None, life}:
                script = _with(script, fault)
        return script


def _with(script: Script, fault: UnitFault) -> Script:
    match fault:
        case SlowStart(seconds=seconds):
            return replace(script, listens_after_s=seconds)
        case CrashAt(seconds=seconds, signal=signal):
            return replace(script, exits_after_s=seconds, exit_code=None, exit_signal=signal)
        case StopIgnored():
            return replace(script, obeys_term_after_s=inf)
        case StopUnconfirmed(times=times):
            return replace(script, unconfirmed_stops=times)
