"""In which phase which input means something (S-4, S-8), and the facts that hold of phases (S-5).

A command that does not fit is refused, naming the phase; an observation that does not fit is dropped. Neither changes
anything. What a fitting input does is the business of `stoker.domain.lifecycle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# isort: off
from stoker.domain.session import (
    AdoptSettings, BecameReady, Cancel, Command, DrainExpired, ExitExplained, ForceRelease, ForceReleaseRecorded,
    InFlightZero, Input, LivenessChanged, LoadTimedOut, Outcome, Phase, Prepared, PrepareFailed, ReadyRefused,
    RetryStop, RoomClaimed, RoomDenied, SessionState, StageSeen, Started, StartFailed, Step, Stop, StopConfirmed,
    StopUnconfirmed, SupervisorFailed, TimerFired, UnitExited,
)  # fmt: skip
# isort: on

LOADING = frozenset({Phase.RESERVED, Phase.PREPARING, Phase.STARTING, Phase.INITIALIZING})
NOT_GONE = frozenset(Phase) - {Phase.GONE}
MAY_HAVE_UNIT = NOT_GONE - {Phase.RESERVED, Phase.PREPARING}

FITS: Mapping[type[Input], frozenset[Phase]] = MappingProxyType(
    {
        Stop: NOT_GONE,
        Cancel: LOADING,
        AdoptSettings: frozenset({Phase.READY}),
        RetryStop: frozenset({Phase.STOP_UNCONFIRMED}),
        ForceRelease: frozenset({Phase.STOP_UNCONFIRMED}),
        RoomClaimed: frozenset({Phase.RESERVED}),
        RoomDenied: frozenset({Phase.RESERVED}),
        Prepared: frozenset({Phase.PREPARING}),
        PrepareFailed: frozenset({Phase.PREPARING}),
        Started: frozenset({Phase.STARTING}),
        StartFailed: frozenset({Phase.STARTING}),
        StageSeen: LOADING,
        BecameReady: frozenset({Phase.INITIALIZING}),
        ReadyRefused: frozenset({Phase.INITIALIZING}),
        LoadTimedOut: frozenset({Phase.INITIALIZING}),
        LivenessChanged: frozenset({Phase.READY, Phase.DRAINING}),
        InFlightZero: frozenset({Phase.DRAINING}),
        DrainExpired: frozenset({Phase.DRAINING}),
        UnitExited: frozenset({Phase.INITIALIZING, Phase.READY, Phase.DRAINING, Phase.STOP_UNCONFIRMED}),
        ExitExplained: frozenset({Phase.STOPPING, Phase.STOP_UNCONFIRMED}),
        StopConfirmed: frozenset({Phase.STOPPING}),
        StopUnconfirmed: frozenset({Phase.STOPPING}),
        ForceReleaseRecorded: frozenset({Phase.STOPPING}),
        TimerFired: frozenset({Phase.RESERVED, Phase.DRAINING, Phase.STOP_UNCONFIRMED}),
        SupervisorFailed: NOT_GONE,
    }
)


def unfit(state: SessionState, incoming: Input) -> Step | None:
    """The answer to an input that means nothing to this life now; None if it fits."""
    fits = FITS[type(incoming)]
    ours = incoming.generation == state.generation
    if ours and state.phase in fits:
        return None
    if not isinstance(incoming, Command):
        return Step(state, outcome=Outcome.DROPPED)
    word = type(incoming).__name__
    if not ours:
        refusal = f"{word} was meant for generation {incoming.generation}"
    else:
        refusal = (
            f"{word} is not legal in {state.phase}, only in {', '.join(phase for phase in Phase if phase in fits)}"
        )
    return Step(state, outcome=Outcome.REFUSED, refusal=refusal)
