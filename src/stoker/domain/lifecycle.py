"""The session machine: all that changes the phase of a life is in this file (S-4 to S-10, S-17, S-20 to S-22).

`step` takes one command or observation and returns the next state and the effects to carry out, in order. Every change
of phase passes `_to`, which knows no edge but those of `LEGAL`. The reservation is given back exactly once, exactly at
``gone``. Lives enter by `stoker.domain.lifecycle_entry`. Not known here: memory, other sessions, hosts, clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from stoker.domain import lifecycle_events as say
from stoker.domain import lifecycle_notes as notes
from stoker.domain.lifecycle_entry import adopted, leftover, reserved
from stoker.domain.lifecycle_fits import unfit

# isort: off
from stoker.domain.session import (
    ASKED, AdoptSettings, ArmTimer, BecameReady, Cancel, CancelEffects, CleanUp, CloseUpstream, DrainExpired, Effect,
    ExitExplained, ExitFacts, ExplainExit, Failure, ForceRelease, ForceReleaseRecorded, InFlightZero, Input,
    LivenessChanged, LoadTimedOut, OpenUpstream, Outcome, Phase, Prepared, PrepareFailed, PrepareUnit, ReadyRefused,
    Reason, RecordAttempt, RecordForceRelease, ReleaseRoom, ReleaseStartLease, RetryStop, RoomClaimed, RoomDenied,
    SavePromptCache, SessionState, StageSeen, Started, StartFailed, StartUnit, Step, Stop, StopConfirmed,
    StopUnconfirmed, StopUnit, SupervisorFailed, TimerFired, UnitExited, WatchLoad, WatchUnit,
)  # fmt: skip
# isort: on

Effects = tuple[Effect, ...]

__all__ = ["LEGAL", "PORT_ATTEMPTS", "Outcome", "Step", "adopted", "leftover", "reserved", "step"]

LEGAL: Mapping[Phase, frozenset[Phase]] = {
    Phase.RESERVED: frozenset({Phase.PREPARING, Phase.GONE}),
    Phase.PREPARING: frozenset({Phase.STARTING, Phase.STOPPING}),
    Phase.STARTING: frozenset({Phase.INITIALIZING, Phase.STOPPING}),
    Phase.INITIALIZING: frozenset({Phase.READY, Phase.STOPPING}),
    Phase.READY: frozenset({Phase.DRAINING, Phase.STOPPING}),
    Phase.DRAINING: frozenset({Phase.STOPPING}),
    Phase.STOPPING: frozenset({Phase.STOP_UNCONFIRMED, Phase.GONE}),
    Phase.STOP_UNCONFIRMED: frozenset({Phase.STOPPING}),
    Phase.GONE: frozenset(),
}
"""S-5, fixed. Between phases a life takes these edges and no others."""


PORT_ATTEMPTS = 3  # S-44
_FAILS: Mapping[type[Input], Reason] = {
    RoomDenied: Reason.ROOM_DENIED,
    PrepareFailed: Reason.PREPARE_FAILED,
    StartFailed: Reason.START_FAILED,
    ReadyRefused: Reason.READY_REFUSED,
}


# -- the step ------------------------------------------------------------------------------------------------------


def step(state: SessionState, incoming: Input, now: float) -> Step:
    """What one input makes of a life at loop time ``now`` (S-8). Total: every phase and input has an answer."""
    generation = state.generation
    if (misfit := unfit(state, incoming)) is not None:
        return misfit
    match incoming:
        case Stop():
            return _stop(state, incoming, now)
        case Cancel(reason=reason, by=by):
            return _end(state, now, reason, by=by)
        case AdoptSettings(changed=changed):
            return Step(state, (say.settings_adopted(state, changed),))
        case RetryStop():
            return _retry(state, now)
        case ForceRelease(by=by):
            return _force_release(state, by, now)
        case RoomClaimed():
            stage = notes.later_stage(state, "preparing")
            return Step(_to(state, Phase.PREPARING, now, stage=stage), (PrepareUnit(generation),))
        case Prepared():
            changes = {"stage": notes.later_stage(state, "starting-unit"), "load_started_at": now}
            return Step(_to(state, Phase.STARTING, now, has_start_intent=True, **changes), (StartUnit(generation),))
        case Started(endpoint_kind=kind, hardening_missing=missing):
            changes = {"stage": notes.later_stage(state, "loading-weights"), "endpoint_kind": kind}
            running = _to(state, Phase.INITIALIZING, now, hardening_missing=missing, **changes)
            return Step(running, (WatchUnit(generation), WatchLoad(generation)))
        case StartFailed(retry_port=True) if state.port_attempts < PORT_ATTEMPTS:
            again = replace(state, port_attempts=state.port_attempts + 1)
            return Step(again, (StartUnit(generation, again.port_attempts),))
        case RoomDenied() | PrepareFailed() | StartFailed() | ReadyRefused():
            return _end(state, now, _FAILS[type(incoming)], failure=incoming.failure)
        case LoadTimedOut(failure=failure, stalled=stalled):
            return _end(state, now, Reason.LOAD_STALLED if stalled else Reason.LOAD_TIMED_OUT, failure=failure)
        case StageSeen():
            seen = notes.with_stage(state, incoming)
            return Step(seen, () if seen.load_reported else (say.load_progressed(seen, incoming),))
        case BecameReady():
            return _became_ready(state, incoming, now)
        case LivenessChanged(liveness=liveness, failures=failures):
            seen = replace(state, liveness=liveness)
            told = say.liveness_changed(seen, previous=state.liveness, failures=failures)
            return Step(seen, () if liveness is state.liveness else (told,))
        case InFlightZero() | DrainExpired():
            return _end(state, now, state.reason or Reason.OPERATOR)
        case UnitExited(exit=facts) if state.phase is Phase.STOP_UNCONFIRMED:
            return _retry(replace(state, exit=facts), now)
        case UnitExited(exit=facts):
            return _end(state, now, notes.exit_reason(state, facts), exited=facts)
        case ExitExplained(failure=failure):
            return _explained(state, failure, now)
        case StopConfirmed(by=by, exit=facts):
            proven = replace(state, stop_confirmed=True, confirmed_by=by, exit=state.exit or facts)
            return Step(proven) if proven.awaiting_explanation else _gone(proven, now, ())
        case StopUnconfirmed():
            return _stop_unconfirmed(state, incoming, now)
        case ForceReleaseRecorded(by=by):
            return _force_released(state, by, now)
        case TimerFired():
            return _timer_fired(state, incoming, now)
        case SupervisorFailed(detail=detail):
            return _supervisor_failed(state, detail, now)
        case _:
            assert_never(incoming)


def _to(state: SessionState, phase: Phase, now: float, **changes: Any) -> SessionState:
    if phase not in LEGAL[state.phase]:
        raise AssertionError(f"no edge from {state.phase} to {phase}")
    return replace(state, phase=phase, since=now, **changes)


def _became_ready(state: SessionState, incoming: BecameReady, now: float) -> Step:
    ready = _to(state, Phase.READY, now, stage="ready", was_ready=True, ready_at=now, load_reported=True)
    effects: Effects = (ReleaseStartLease(state.generation), OpenUpstream(state.generation))
    if not state.load_reported:
        told = say.load_completed(ready, now=now, stages_ms=incoming.stages_ms, measured=incoming.measured)
        effects += (RecordAttempt(state.generation, "ready"), told)
    return Step(ready, effects)


def _timer_fired(state: SessionState, incoming: TimerFired, now: float) -> Step:
    match state.phase, incoming.timer:
        case Phase.RESERVED, "reserved":
            return _end(state, now, Reason.ROOM_DENIED, failure=notes.room_overdue(state, now))
        case Phase.DRAINING, "drain":
            return _end(state, now, state.reason or Reason.OPERATOR)
        case Phase.STOP_UNCONFIRMED, "retry-stop":
            return _retry(state, now)
        case _:
            return Step(state, outcome=Outcome.DROPPED)


# -- ending --------------------------------------------------------------------------------------------------------


def _stop(state: SessionState, stop: Stop, now: float) -> Step:
    """A stop while it loads is a cancel (S-17); in ``stopping`` it joins, in ``stop-unconfirmed`` it tries again."""
    if state.phase is Phase.STOPPING:
        return Step(notes.with_reason(state, stop.reason), outcome=Outcome.JOINED)
    grace_s = state.stop_grace_s if stop.grace_s is None else stop.grace_s
    asked = replace(state, stop_mode=stop.mode, stop_grace_s=grace_s)
    if state.phase is Phase.STOP_UNCONFIRMED:
        return _retry(notes.with_reason(asked, stop.reason), now)
    if state.phase is Phase.DRAINING and stop.mode == "drain":
        return notes.join_drain(state, stop, now)
    if state.phase is Phase.READY and stop.mode == "drain" and state.in_flight:
        asked = notes.with_reason(asked, stop.reason)
        draining = _to(asked, Phase.DRAINING, now, drain_deadline=now + stop.drain_s)
        told = say.drain_begun(draining, drain_s=stop.drain_s)
        return Step(draining, (ArmTimer(state.generation, "drain", stop.drain_s), told))
    return _end(asked, now, stop.reason)


def _end(
    state: SessionState,
    now: float,
    reason: Reason,
    *,
    failure: Failure | None = None,
    exited: ExitFacts | None = None,
    by: str = "operator",
) -> Step:
    """The one teardown, T1 to T6 (S-20): what ends a life, whoever asked and whatever broke."""
    generation, before = state.generation, state.phase
    ending = notes.with_reason(state, reason)
    if before is Phase.RESERVED:
        ending, outcome = _load_outcome(ending, now, failure, by)
        gone = _to(ending, Phase.GONE, now, confirmed_by="absent")
        return Step(gone, (ReleaseRoom(generation), *outcome, say.ended(gone, now=now)))
    ending = _to(ending, Phase.STOPPING, now, stop_begun_at=now, in_flight_failed=state.in_flight)
    effects: list[Effect] = [CancelEffects(generation), say.stop_begun(ending, phase_before=before)]
    if exited is None:
        ending, outcome = _load_outcome(ending, now, failure, by)
        effects += outcome
    else:
        ending = replace(ending, exit=exited, ended_itself=True, awaiting_explanation=True)
    if state.was_ready:
        effects.append(CloseUpstream(generation, "engine-exited" if exited else "session-stopped"))
    if exited is not None:
        effects.append(ExplainExit(generation, exited, before))
    elif state.was_ready and reason in ASKED and state.stop_mode == "drain":
        effects.append(SavePromptCache(generation))
    if not state.has_start_intent:  # T6: no unit was ever begun, so none is left
        return _gone(replace(ending, confirmed_by="absent"), now, tuple(effects))
    return Step(ending, (*effects, StopUnit(generation, ending.stop_grace_s)))


def _load_outcome(state: SessionState, now: float, failure: Failure | None, by: str) -> tuple[SessionState, Effects]:
    """S-22: exactly one of failed and cancelled, unless the load has had its outcome."""
    if state.load_reported:
        return state, ()
    reason = state.reason or Reason.INTERNAL_ERROR
    if reason in ASKED:
        told = replace(state, load_reported=True)
        said = say.load_cancelled(told, by=by, now=now)
        return told, (RecordAttempt(state.generation, "cancelled"), said)
    failure = failure or notes.plain_failure(state, reason)
    told = replace(state, load_reported=True, failure=failure)
    return told, (RecordAttempt(state.generation, "failed", failure), say.load_failed(told, failure, now=now))


def _explained(state: SessionState, failure: Failure, now: float) -> Step:
    """T4: the failed or crashed event goes out now; a later explanation is added to the attempt alone (S-111)."""
    if not state.ended_itself:
        return Step(state, outcome=Outcome.DROPPED)
    told = notes.with_explanation(state, failure)
    if not state.awaiting_explanation:
        word = "crashed" if state.was_ready else "failed"
        return Step(told, () if state.adopted else (RecordAttempt(state.generation, word, failure),))
    if state.was_ready:
        told = replace(told, crash_reported=True)
        effects: Effects = (RecordAttempt(state.generation, "crashed", failure), say.crashed(told, failure))
    else:
        told, effects = _load_outcome(told, now, failure, "operator")
    return _gone(told, now, effects) if told.stop_confirmed else Step(told, effects)


def _gone(state: SessionState, now: float, before: Effects) -> Step:
    """T7 and T8: the end is proven; the room goes back in this very step."""
    gone = _to(state, Phase.GONE, now, stop_confirmed=True)
    ends = (ReleaseRoom(state.generation), say.ended(gone, now=now), CleanUp(state.generation))
    return Step(gone, (*before, *ends))


def _stop_unconfirmed(state: SessionState, incoming: StopUnconfirmed, now: float) -> Step:
    if state.stop_confirmed:
        return Step(state, outcome=Outcome.DROPPED)
    attempts = state.stop_attempts + 1
    was_retry = state.unconfirmed_cause is not None
    unproven = _to(
        state, Phase.STOP_UNCONFIRMED, now, stop_attempts=attempts, failed_retries=state.failed_retries + was_retry,
        unconfirmed_cause=incoming.cause, survivors=incoming.survivors, force_release_by=None,
        next_retry_at=now + say.retry_stop_s(attempts),
    )  # fmt: skip
    effects: Effects = (ArmTimer(state.generation, "retry-stop"),)
    if attempts == 1 or incoming.cause != state.unconfirmed_cause:
        effects += (say.stop_unconfirmed(unproven),)
    return Step(unproven, effects)


def _retry(state: SessionState, now: float) -> Step:
    return Step(_to(state, Phase.STOPPING, now, next_retry_at=None), (StopUnit(state.generation, state.stop_grace_s),))


def _force_release(state: SessionState, by: str, now: float) -> Step:
    """S-32: only after a retry has failed too, and written to the journal before anything is released."""
    if not state.failed_retries:
        refusal = f"its memory can be given up only in {state.phase} after a retry of the stop has failed too"
        return Step(state, outcome=Outcome.REFUSED, refusal=refusal)
    stopping = _to(state, Phase.STOPPING, now, force_release_by=by, next_retry_at=None)
    return Step(stopping, (RecordForceRelease(state.generation, by),))


def _force_released(state: SessionState, by: str, now: float) -> Step:
    """The room goes back unproven; what is left of the unit stays on the books as a ghost (S-32)."""
    if state.force_release_by is None:
        return Step(state, outcome=Outcome.DROPPED)
    spoken = Step(notes.with_reason(replace(state, confirmed_by="force-release"), Reason.FORCE_RELEASED))
    if state.awaiting_explanation:
        spoken = _explained(spoken.state, notes.plain_failure(state, state.reason or Reason.FORCE_RELEASED), now)
    gone = _to(spoken.state, Phase.GONE, now)
    told = (say.force_released(gone, by=by), say.ended(gone, now=now))
    return Step(gone, (*spoken.effects, ReleaseRoom(state.generation), *told))


def _supervisor_failed(state: SessionState, detail: str, now: float) -> Step:
    """A teardown like any other (S-115). One that breaks while ending is begun anew once, then backs off (S-21)."""
    failure = notes.supervisor_failure(state, detail)
    if state.phase not in {Phase.STOPPING, Phase.STOP_UNCONFIRMED}:
        return _end(state, now, Reason.INTERNAL_ERROR, failure=failure)
    noted = notes.with_broken_supervisor(state)
    spoken = _explained(noted, failure, now) if noted.awaiting_explanation else Step(noted)
    if spoken.state.phase is Phase.GONE:
        return spoken
    if state.phase is Phase.STOP_UNCONFIRMED:
        then = _retry(spoken.state, now)
    elif noted.supervisor_failures > 1:
        then = _stop_unconfirmed(spoken.state, StopUnconfirmed(state.generation, "runtime-error", detail), now)
    else:
        then = Step(spoken.state, (CancelEffects(state.generation), StopUnit(state.generation, state.stop_grace_s)))
    return Step(then.state, (*spoken.effects, *then.effects))
