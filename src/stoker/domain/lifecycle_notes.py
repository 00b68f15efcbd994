"""What a life remembers: changes of its fields that never change its phase (S-10, S-99, S-105, S-111).

The first reason stays and later ones are kept beside it, so an error provoked by a cancel is reported as the cancel.
"""

from __future__ import annotations

from dataclasses import replace

from stoker.domain.session import ArmTimer, ExitFacts, Failure, Outcome, Reason, SessionState, StageSeen, Step, Stop

# S-99: neither the stage nor the percent of a load ever goes back.
STAGES = (
    "claiming-room", "preparing", "pulling-image", "starting-unit", "loading-weights", "warming-up", "verifying",
    "ready",
)  # fmt: skip
_RANK = {stage: rank for rank, stage in enumerate(STAGES)}

_WATCHDOG_STALE_EXIT = 97

_EXPLAINED = {
    "device-out-of-memory": Reason.OUT_OF_MEMORY,
    "host-out-of-memory": Reason.OUT_OF_MEMORY,
    "heartbeat-lost": Reason.HEARTBEAT_LOST,
    "device-lost": Reason.DEVICE_LOST,
}

# Ends that Stoker itself decided on, without a failure record to go with them.
_CODES = {
    Reason.OUT_OF_MEMORY: "host-out-of-memory",
    Reason.HEARTBEAT_LOST: "heartbeat-lost",
    Reason.HUNG: "hung",
    Reason.DEVICE_LOST: "device-lost",
    Reason.ROOM_DENIED: "room-denied",
}


def with_reason(state: SessionState, reason: Reason) -> SessionState:
    if state.reason is None:
        return replace(state, reason=reason)
    if reason is state.reason or reason in state.also:
        return state
    return replace(state, also=(*state.also, reason))


def with_broken_supervisor(state: SessionState) -> SessionState:
    noted = with_reason(state, Reason.INTERNAL_ERROR)
    return replace(noted, supervisor_failures=state.supervisor_failures + 1, force_release_by=None)


def exit_reason(state: SessionState, facts: ExitFacts) -> Reason:
    """What the bare facts of an unasked exit already tell, before anything is explained."""
    if facts.oom_killed:
        return Reason.OUT_OF_MEMORY
    if facts.by == "watchdog" and facts.code == _WATCHDOG_STALE_EXIT:
        return Reason.HEARTBEAT_LOST
    return Reason.CRASHED if state.was_ready else Reason.EXITED_BEFORE_READY


def with_explanation(state: SessionState, failure: Failure) -> SessionState:
    explained = replace(state, failure=failure, awaiting_explanation=False)
    reason = _EXPLAINED.get(failure.code)
    return explained if reason is None else with_reason(explained, reason)


def later_stage(state: SessionState, stage: str) -> str:
    """The later of the two; a stage nobody knows is never later (S-99)."""
    return stage if _RANK.get(stage, -1) > _RANK.get(state.stage, -1) else state.stage


def with_stage(state: SessionState, seen: StageSeen) -> SessionState:
    known = [percent for percent in (state.percent, seen.percent) if percent is not None]
    return replace(state, stage=later_stage(state, seen.stage), percent=max(known, default=None))


def join_drain(state: SessionState, stop: Stop, now: float) -> Step:
    """The drain that runs serves this caller too; only an earlier deadline changes it (S-20)."""
    joined, deadline = with_reason(state, stop.reason), now + stop.drain_s
    if state.drain_deadline is not None and state.drain_deadline <= deadline:
        return Step(joined, outcome=Outcome.JOINED)
    sooner = replace(joined, drain_deadline=deadline)
    return Step(sooner, (ArmTimer(state.generation, "drain", stop.drain_s),), Outcome.JOINED)


def plain_failure(state: SessionState, reason: Reason) -> Failure:
    """The failure of an end that nobody asked for and nobody described."""
    return Failure(
        _CODES.get(reason, "internal"),
        f"Session {state.generation} of {state.deployment} was ended while {state.phase}: {reason}.",
        remedy="Look at its log with `stoker logs`.",
    )


def room_overdue(state: SessionState, now: float) -> Failure:
    waited_s = now - state.since
    return Failure(
        "room-denied",
        f"Session {state.generation} of {state.deployment} waited {waited_s:.1f} s for room on this machine in vain.",
        remedy="Stop something that holds memory, or try again later.",
        numbers={"waited_ms": round(waited_s * 1000), **{f"{k}_bytes": v for k, v in state.reservation.items()}},
    )


def supervisor_failure(state: SessionState, detail: str) -> Failure:
    return Failure(
        "internal",
        f"Stoker's supervisor of session {state.generation} of {state.deployment} failed: {detail}.",
        remedy="Please report it with the output of `stoker doctor`.",
    )
