"""Back-off and crash-loop holds, per replica (S-112 to S-114).

Decides when a replica that keeps failing may be started again. Its memory is one frozen record; times are loop time.
Only a completed answer, an explicit load or a changed load key restores the budget; stops that somebody asked for are
never told to it. Not known here: who wants the replica, and what is done about the failure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

HOLD_AT_ONCE = frozenset(
    {
        "model-unsupported", "bad-setting", "illegal-instruction", "installation-broken", "wrong-architecture",
        "entrypoint-missing", "watchdog-misconfigured",
    }
)  # fmt: skip
REPLAN_ONCE = frozenset({"device-out-of-memory", "host-out-of-memory", "context-too-large"})

FAILURES_ALLOWED, FAILURE_WINDOW_S = 3, 600.0
CRASHES_ALLOWED, CRASH_WINDOW_S = 10, 3600.0
BACK_OFF_FIRST_S, BACK_OFF_LAST_S, BACK_OFF_JITTER = 1.0, 60.0, 0.1
HOLD_FIRST_S, HOLD_LAST_S = 300.0, 3600.0


@dataclass(frozen=True, slots=True)
class RestartState:
    """``failures``: times of failed loads and crashes since the last completed answer; ``crashes``: of crashes alone.

    ``held_until`` inf: no trial. ``hold_s`` is the length of the hold in force or of the next one. ``replanned``: the
    one start with a new plan that S-114 allows has been given.
    """

    failures: tuple[float, ...] = ()
    crashes: tuple[float, ...] = ()
    next_start_at: float = 0.0
    consecutive: int = 0
    held_until: float | None = None
    held_since: float | None = None
    hold_s: float = HOLD_FIRST_S
    on_trial: bool = False
    code: str = ""
    message: str = ""
    replanned: bool = False


@dataclass(frozen=True, slots=True)
class MayStart:
    pass


@dataclass(frozen=True, slots=True)
class BackOff:
    until: float


@dataclass(frozen=True, slots=True)
class Held:
    """``until`` None: no trial; only an explicit load or a changed load key lifts it."""

    until: float | None
    code: str
    message: str
    failures: int


def back_off_s(consecutive: int, jitter: float) -> float:
    """1, 2, 4 … 60 s after so many failures in a row, ±10 %; ``jitter`` in [0, 1)."""
    nominal_s = min(BACK_OFF_LAST_S, BACK_OFF_FIRST_S * 2.0 ** min(consecutive - 1, 10))
    return nominal_s * (1.0 - BACK_OFF_JITTER + 2.0 * BACK_OFF_JITTER * jitter)


def after_failure(
    state: RestartState, *, now: float, code: str, message: str, jitter: float, crashed: bool
) -> RestartState:
    """A failed load (``crashed`` false) or a crash after ready; ``jitter`` in [0, 1) gives the ±10 %.

    A failure while a hold is on record can only be that of its trial: the hold comes back, twice as long.
    """
    crashes = _recent(state.crashes, now, CRASH_WINDOW_S)
    failed = replace(
        state,
        failures=(*_recent(state.failures, now, FAILURE_WINDOW_S), now),
        crashes=(*crashes, now) if crashed else crashes,
        consecutive=state.consecutive + 1,
        next_start_at=now + back_off_s(state.consecutive + 1, jitter),
        on_trial=False,
        code=code,
        message=message,
        replanned=state.replanned or code in REPLAN_ONCE,
    )
    if code in HOLD_AT_ONCE:
        return replace(failed, held_since=now, held_until=math.inf)
    if state.held_until is not None:
        hold_s = min(HOLD_LAST_S, state.hold_s * 2.0)
        return replace(failed, held_since=now, held_until=now + hold_s, hold_s=hold_s)
    replanned_in_vain = code in REPLAN_ONCE and state.replanned
    too_many = len(failed.failures) >= FAILURES_ALLOWED or len(failed.crashes) >= CRASHES_ALLOWED
    if replanned_in_vain or too_many:
        return replace(failed, held_since=now, held_until=now + failed.hold_s)
    return failed


def begin_trial(state: RestartState) -> RestartState:
    """The one start that a hold whose time is over allows."""
    return replace(state, on_trial=True)


def after_answer(state: RestartState) -> RestartState:
    """A completed answer restores the budget of failures; the 10-crash count in 3600 s stays."""
    return RestartState(crashes=state.crashes)


def lifted(state: RestartState) -> RestartState:
    """An explicit load or a changed load key: everything forgiven."""
    return type(state)()


def may_start(state: RestartState, now: float) -> MayStart | BackOff | Held:
    """May the replica be started at ``now``? After a hold has run out, once: as a trial."""
    if state.held_until is not None:
        if now >= state.held_until:
            return MayStart()
        until = None if math.isinf(state.held_until) else state.held_until
        return Held(until, state.code, state.message, max(1, len(state.failures)))
    if now < state.next_start_at:
        return BackOff(state.next_start_at)
    return MayStart()


def _recent(times: tuple[float, ...], now: float, window_s: float) -> tuple[float, ...]:
    return tuple(at for at in times if at > now - window_s)
