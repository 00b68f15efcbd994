"""Lives for tests of the session machine: one in each phase, reached by the machine itself, and one of each input."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stoker.domain import lifecycle
from stoker.domain.session import (
    AdoptSettings,
    BecameReady,
    Cancel,
    DrainExpired,
    Effect,
    ExitExplained,
    ExitFacts,
    Failure,
    ForceRelease,
    ForceReleaseRecorded,
    InFlightZero,
    Input,
    Liveness,
    LivenessChanged,
    LoadTimedOut,
    Phase,
    Prepared,
    PrepareFailed,
    Publish,
    ReadyRefused,
    Reason,
    RetryStop,
    RoomClaimed,
    RoomDenied,
    SessionState,
    StageSeen,
    Started,
    StartFailed,
    Step,
    Stop,
    StopConfirmed,
    StopUnconfirmed,
    SupervisorFailed,
    TimerFired,
    UnitExited,
)
from stoker.ids import RAM, DeploymentName, Generation

GENERATION = Generation(7)
GIB = 1 << 30
BROKEN = Failure("engine-exited", "The engine exited with 1.", numbers={"exit": 1}, excerpt=("bad tensor",))
OUT_OF_MEMORY = Failure("device-out-of-memory", "The card is full.", kind="device-out-of-memory")
EXIT = ExitFacts(code=1, wall=1000.0)


@dataclass(frozen=True)
class Survivor:
    pid: int
    name: str
    bytes: int | None = None


def begin(now: float = 0.0, **more) -> Step:
    return lifecycle.reserved(
        generation=GENERATION,
        deployment=DeploymentName("smol"),
        replica=0,
        reservation={RAM: GIB},
        now=now,
        claim_wait_s=120.0,
        cause="request",
        ticket="tkt_1",
        unit_id="stoker-00000000-7",
        **more,
    )


CONFIRMED = StopConfirmed(GENERATION, "guardian", ExitFacts(code=0, by="us"))
UNCONFIRMED = StopUnconfirmed(GENERATION, "survivors", "pid 9 stays", (Survivor(9, "worker", 4096),))
NOW = Stop(GENERATION, Reason.OPERATOR, mode="now")
DRAIN = Stop(GENERATION, Reason.OPERATOR)

_WAY = {
    Phase.RESERVED: (),
    Phase.PREPARING: (RoomClaimed(GENERATION),),
    Phase.STARTING: (RoomClaimed(GENERATION), Prepared(GENERATION)),
}
_WAY[Phase.INITIALIZING] = (*_WAY[Phase.STARTING], Started(GENERATION, None, None))
_WAY[Phase.READY] = (*_WAY[Phase.INITIALIZING], BecameReady(GENERATION, None))
_WAY[Phase.STOPPING] = (*_WAY[Phase.READY], NOW)
_WAY[Phase.STOP_UNCONFIRMED] = (*_WAY[Phase.STOPPING], UNCONFIRMED)
_WAY[Phase.GONE] = (*_WAY[Phase.STOPPING], CONFIRMED)


def run(state: SessionState, *inputs: Input, now: float = 0.0) -> Step:
    """The last step of ``inputs``; every one of them must have been applied or joined."""
    taken = Step(state)
    for incoming in inputs:
        taken = lifecycle.step(taken.state, incoming, now)
        assert taken.outcome in {lifecycle.Outcome.APPLIED, lifecycle.Outcome.JOINED}, (incoming, taken)
    return taken


def in_phase(phase: Phase, **changes) -> SessionState:
    """A life that came to ``phase`` by the plainest way; ``draining`` has one request in flight."""
    if phase is Phase.DRAINING:
        state = run(replace(in_phase(Phase.READY), in_flight=1), DRAIN).state
    else:
        state = run(begin().state, *_WAY[phase]).state
    assert state.phase is phase
    return replace(state, **changes)


SAMPLES: dict[str, Input] = {
    "Stop-drain": DRAIN,
    "Stop-now": NOW,
    "Cancel": Cancel(GENERATION),
    "AdoptSettings": AdoptSettings(GENERATION, ("temperature",)),
    "RetryStop": RetryStop(GENERATION),
    "ForceRelease": ForceRelease(GENERATION, "ann"),
    "RoomClaimed": RoomClaimed(GENERATION),
    "RoomDenied": RoomDenied(GENERATION, Failure("room-denied", "No room.")),
    "Prepared": Prepared(GENERATION),
    "PrepareFailed": PrepareFailed(GENERATION, BROKEN),
    "Started": Started(GENERATION, "unit", "endpoint"),
    "StartFailed": StartFailed(GENERATION, BROKEN, may_exist=True),
    "StartFailed-port": StartFailed(GENERATION, BROKEN, may_exist=True, retry_port=True),
    "StageSeen": StageSeen(GENERATION, "warming-up", 90, 1000, 2000, 3000),
    "BecameReady": BecameReady(GENERATION, "accepted", {RAM: GIB // 2}, {"loading-weights": 900}),
    "ReadyRefused": ReadyRefused(GENERATION, Failure("ready-refused", "2048 of 4096 tokens.")),
    "LoadTimedOut": LoadTimedOut(GENERATION, Failure("load-timed-out", "Not ready in 60 s.")),
    "LivenessChanged": LivenessChanged(GENERATION, Liveness.SUSPECT, 1),
    "InFlightZero": InFlightZero(GENERATION),
    "DrainExpired": DrainExpired(GENERATION),
    "UnitExited": UnitExited(GENERATION, EXIT),
    "ExitExplained": ExitExplained(GENERATION, BROKEN),
    "StopConfirmed": CONFIRMED,
    "StopUnconfirmed": UNCONFIRMED,
    "ForceReleaseRecorded": ForceReleaseRecorded(GENERATION, "ann"),
    "TimerFired-reserved": TimerFired(GENERATION, "reserved"),
    "TimerFired-drain": TimerFired(GENERATION, "drain"),
    "TimerFired-retry-stop": TimerFired(GENERATION, "retry-stop"),
    "SupervisorFailed": SupervisorFailed(GENERATION, "KeyError"),
}


def name_of(effect: Effect) -> str:
    return effect.event if isinstance(effect, Publish) else type(effect).__name__


def names(step: Step) -> list[str]:
    return [name_of(effect) for effect in step.effects]


def fields_of(step: Step, event: str) -> dict:
    found = [dict(effect.fields) for effect in step.effects if isinstance(effect, Publish) and effect.event == event]
    assert len(found) == 1, (event, names(step))
    return found[0]
