"""What one life says of itself: the `Publish` effects of the session machine, field by field (S-22, S-116).

Decides no transition. Fields are those that the machine itself knows; the kernel adds the common ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.domain.session import ExitFacts, Failure, Liveness, Phase, Publish, Reason, SessionState, StageSeen

# S-30: inspect and stop again after these, then every minute.
RETRY_STOP_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
RETRY_STOP_LAST_S = 60.0

# S-116, `session.load-cancelled`: who is behind an end that somebody asked for; other reasons are an operator's doing.
_CANCELLED_BY = {
    Reason.ABANDONED: "abandoned",
    Reason.SUPERSEDED: "superseded",
    Reason.SHUTDOWN: "shutdown",
}


def retry_stop_s(stop_attempts: int) -> float:
    """Seconds until the next try after so many unconfirmed ones, before jitter (S-30)."""
    index = max(0, stop_attempts - 1)
    return RETRY_STOP_S[index] if index < len(RETRY_STOP_S) else RETRY_STOP_LAST_S


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def exit_fields(facts: ExitFacts | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        "code": facts.code,
        "signal": facts.signal,
        "oom_killed": facts.oom_killed,
        "at": facts.wall,
        "by": facts.by,
    }


def reserved(state: SessionState, *, cards: tuple[str, ...], ticket: str | None, cause: str) -> Publish:
    fields = {"reservation": dict(state.reservation), "cards": list(cards), "ticket": ticket, "cause": cause}
    return Publish(state.generation, "session.reserved", fields)


def load_progressed(state: SessionState, seen: StageSeen) -> Publish:
    card = state.substituted_card
    fields = {
        "stage": state.stage,
        "percent": state.percent,
        "elapsed_ms": seen.elapsed_ms,
        "deadline_ms": seen.deadline_ms,
        "ceiling_ms": seen.ceiling_ms,
        "attempt": state.port_attempts,
        "substituted_card": None if card is None else dict(card),
    }
    return Publish(state.generation, "session.load-progressed", fields)


def load_completed(
    state: SessionState, *, now: float, stages_ms: Mapping[str, int], measured: Mapping[Any, int]
) -> Publish:
    fields = {
        "elapsed_ms": milliseconds(now - state.started_at),
        "stages": dict(stages_ms),
        "footprint": dict(measured or state.reservation),
        "endpoint_kind": state.endpoint_kind,
        "hardening_missing": list(state.hardening_missing),
    }
    return Publish(state.generation, "session.load-completed", fields)


def load_failed(state: SessionState, failure: Failure, *, now: float) -> Publish:
    fields = {
        "code": failure.code,
        "reason": state.reason,
        "kind": failure.kind,
        "message": failure.message,
        "remedy": failure.remedy,
        "numbers": dict(failure.numbers),
        "exit": exit_fields(state.exit),
        "excerpt": list(failure.excerpt),
        "elapsed_ms": milliseconds(now - state.started_at),
        "retry_after_s": failure.retry_after_s,
    }
    return Publish(state.generation, "session.load-failed", fields)


def load_cancelled(state: SessionState, *, by: str, now: float) -> Publish:
    if state.reason is not None and state.reason is not Reason.CANCELLED:
        by = _CANCELLED_BY.get(state.reason, "operator")
    fields = {"stage": state.stage, "by": by, "elapsed_ms": milliseconds(now - state.started_at)}
    return Publish(state.generation, "session.load-cancelled", fields)


def settings_adopted(state: SessionState, changed: tuple[str, ...]) -> Publish:
    return Publish(state.generation, "session.settings-adopted", {"changed": list(changed)})


def liveness_changed(state: SessionState, *, previous: Liveness, failures: int) -> Publish:
    fields = {"from": previous, "to": state.liveness, "failures": failures, "in_flight": state.in_flight}
    return Publish(state.generation, "session.liveness-changed", fields)


def drain_begun(state: SessionState, *, drain_s: float) -> Publish:
    fields = {"reason": state.reason, "in_flight": state.in_flight, "deadline_ms": milliseconds(drain_s)}
    return Publish(state.generation, "session.drain-begun", fields)


def stop_begun(state: SessionState, *, phase_before: Phase) -> Publish:
    """``grace_s`` None: the deployment's own."""
    fields = {"reason": state.reason, "phase_before": phase_before, "grace_s": state.stop_grace_s}
    return Publish(state.generation, "session.stop-begun", fields)


def stop_unconfirmed(state: SessionState) -> Publish:
    """``next_retry_ms`` is before jitter."""
    fields = {
        "unit_id": state.unit_id,
        "cause": state.unconfirmed_cause,
        "survivors": [{"pid": one.pid, "name": one.name, "bytes": one.bytes} for one in state.survivors],
        "reservation": dict(state.reservation),
        "attempts": state.stop_attempts,
        "next_retry_ms": milliseconds(retry_stop_s(state.stop_attempts)),
        "remedy": (
            "Stoker keeps trying. End the survivors yourself, or, once a retry has failed too, give the memory up with "
            f"`stoker stop --force-release {state.generation}`: that stops nothing."
        ),
    }
    return Publish(state.generation, "session.stop-unconfirmed", fields)


def crashed(state: SessionState, failure: Failure) -> Publish:
    ready_at, begun_at = state.ready_at, state.stop_begun_at
    fields = {
        "code": failure.code,
        "kind": failure.kind,
        "message": failure.message,
        "numbers": dict(failure.numbers),
        "exit": exit_fields(state.exit),
        "uptime_ms": 0 if ready_at is None or begun_at is None else milliseconds(begun_at - ready_at),
        "in_flight_failed": state.in_flight_failed,
        "excerpt": list(failure.excerpt),
    }
    return Publish(state.generation, "session.crashed", fields)


def ended(state: SessionState, *, now: float) -> Publish:
    fields = {
        "reason": state.reason,
        "also": list(state.also),
        "exit": exit_fields(state.exit),
        "confirmed_by": state.confirmed_by,
        "released": dict(state.reservation),
        "lifetime_ms": milliseconds(now - state.started_at),
    }
    return Publish(state.generation, "session.ended", fields)


def force_released(state: SessionState, *, by: str) -> Publish:
    fields = {
        "by": by,
        "unit_id": state.unit_id,
        "released": dict(state.reservation),
        "cause": state.unconfirmed_cause,
    }
    return Publish(state.generation, "session.force-released", fields)
