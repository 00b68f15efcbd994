"""Back-off and crash-loop holds, per replica (S-112 to S-114)."""

from __future__ import annotations

from dataclasses import dataclass

HOLD_AT_ONCE = frozenset(
    {
        "model-unsupported", "bad-setting", "illegal-instruction", "installation-broken", "wrong-architecture",
        "entrypoint-missing", "watchdog-misconfigured",
    }
)  # fmt: skip
REPLAN_ONCE = frozenset({"device-out-of-memory", "host-out-of-memory", "context-too-large"})


@dataclass(frozen=True, slots=True)
class RestartState:
    """``failures`` and ``crashes`` are times of failed loads and of crashes after ready; ``held_until`` inf: no trial."""

    failures: tuple[float, ...] = ()
    crashes: tuple[float, ...] = ()
    next_start_at: float = 0.0
    consecutive: int = 0
    held_until: float | None = None
    held_since: float | None = None
    hold_s: float = 300.0
    on_trial: bool = False
    code: str = ""
    message: str = ""


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


def after_failure(state: RestartState, *, now: float, code: str, message: str, jitter: float, crashed: bool) -> RestartState:
    """A failed load (``crashed`` false) or a crash after ready; ``jitter`` in [0, 1) gives the ±10 %."""
    raise NotImplementedError


def after_answer(state: RestartState) -> RestartState:
    """A completed answer restores the budget of failures; the 10-crash count in 3600 s stays."""
    raise NotImplementedError


def lifted(state: RestartState) -> RestartState:
    """An explicit load or a changed load key: everything forgiven."""
    raise NotImplementedError


def may_start(state: RestartState, now: float) -> MayStart | BackOff | Held:
    raise NotImplementedError
