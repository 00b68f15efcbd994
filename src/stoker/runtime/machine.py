"""The kernel's hands: it steps lives, numbers events, and collects what the shell must carry out.

Everything here is synchronous. What a step *means* for queues, memory and operations is the business of the modules
that subscribe with `Machine.after`; this one only keeps each life's state, its timers and the order of effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stoker.domain import lifecycle
from stoker.domain.events import Event
from stoker.domain.lifecycle import Outcome, Step
from stoker.domain.lifecycle_events import retry_stop_s
from stoker.domain.session import ArmTimer, Failure, Input, OpenUpstream, Publish, SessionState, TimerFired
from stoker.errors import ErrorCode, StokerError, error_for
from stoker.ports.clock import Clock
from stoker.runtime.inputs import Limits
from stoker.runtime.outbox import Announce, Carry, Instruction
from stoker.runtime.state import Deployment, KernelState, Session

After = Callable[[Session, SessionState, Step], None]


def failure_error(failure: Failure, deployment: str) -> StokerError:
    """The one error that every caller of a failed load gets (S-117)."""
    try:
        code = ErrorCode(failure.code)
    except ValueError:
        code = ErrorCode.ENGINE_FAILED
    details: dict[str, Any] = {"deployment": deployment, "kind": failure.kind, **failure.numbers}
    if failure.excerpt:
        details["excerpt"] = list(failure.excerpt)
    return error_for(code, failure.message, remedy=failure.remedy, details=details, retry_after_s=failure.retry_after_s)


class Machine:
    """Steps lives and collects effects. ``after`` is called with (session, state before, step) for each step."""

    def __init__(self, state: KernelState, clock: Clock, limits: Limits) -> None:
        self.state = state
        self.clock = clock
        self.limits = limits
        self.after: list[After] = []
        self._outbox: list[Instruction] = []

    # -- effects ---------------------------------------------------------------------------------------------------

    def send(self, instruction: Instruction) -> None:
        self._outbox.append(instruction)

    def drain(self) -> list[Instruction]:
        if not self._outbox:
            return []
        taken, self._outbox = self._outbox, []
        return taken

    def announce(self, event: str, **fields: Any) -> Event:
        """Publish one event in this step, numbered in the kernel's order (C-13, S-116)."""
        state = self.state
        state.seq += 1
        made = Event(
            id=f"{state.instance}:{state.seq}",
            seq=state.seq,
            at=state.wall,
            event=event,
            fields={"scope": state.scope, **fields},
        )
        self._outbox.append(Announce(made))
        return made

    def announce_session(self, session: Session, event: str, fields: Mapping[str, Any]) -> None:
        self.announce(event, **session_subject(session), **fields)

    # -- lives -----------------------------------------------------------------------------------------------------

    def feed(self, session: Session, incoming: Input) -> Step:
        """Step one life and pass its effects on. A refused command raises nothing here: the caller reads the step."""
        before = session.state
        if before.in_flight != session.in_flight:
            before = _with_in_flight(before, session.in_flight)
        step = lifecycle.step(before, incoming, self.state.now)
        if step.outcome is Outcome.DROPPED:
            self.state.meters.count("stoker_observations_dropped_total", type(incoming).__name__, before.phase)
            return step
        if step.outcome is Outcome.REFUSED:
            return step
        session.state = step.state
        if before.phase is not step.state.phase:
            self.state.stale_plan = True
        self._take_effects(session, step)
        for subscriber in self.after:
            subscriber(session, before, step)
        return step

    def enter(self, session: Session, step: Step) -> None:
        """A life begins: its first effects, in order."""
        self.state.stale_plan = True
        self._take_effects(session, step)

    def _take_effects(self, session: Session, step: Step) -> None:
        for effect in step.effects:
            match effect:
                case ArmTimer():
                    self._arm(session, effect)
                case Publish(event=event, fields=fields):
                    self.announce_session(session, event, fields)
                case OpenUpstream():
                    pass  # the door opens in `Kernel`, which knows what was accepted
                case _:
                    self.send(Carry(session.generation, effect, str(step.state.reason or "")))

    def _arm(self, session: Session, effect: ArmTimer) -> None:
        delay = effect.delay_s
        if delay is None:
            delay = retry_stop_s(session.state.stop_attempts) * (0.9 + 0.2 * self.clock.jitter())
        when = self.state.now + delay
        self.state.timers[session.generation, effect.timer] = when
        self.state.alarms.at(when)

    def fire_timers(self) -> None:
        """Feed every timer that is due; timers of lives that are gone are forgotten."""
        now, timers = self.state.now, self.state.timers
        for key in [key for key, when in timers.items() if when <= now]:
            del timers[key]
            session = self.state.sessions.get(key[0])
            if session is not None:
                self.feed(session, TimerFired(key[0], key[1]))

    def forget_timers(self, session: Session) -> None:
        for key in [key for key in self.state.timers if key[0] == session.generation]:
            del self.state.timers[key]


def session_subject(session: Session) -> dict[str, Any]:
    """The fields that every event of a life carries (S-116)."""
    state = session.state
    return {
        "deployment": state.deployment,
        "replica": state.replica,
        "generation": state.generation,
        "model": session.model,
        "engine": session.engine,
        "unit_kind": state.unit_kind,
    }


def _with_in_flight(state: SessionState, in_flight: int) -> SessionState:
    return replace(state, in_flight=in_flight)


def not_legal(step: Step, session: Session) -> StokerError:
    """A command that does not fit the phase: 409, naming the phase (S-4, C-6)."""
    return error_for(
        ErrorCode.NOT_LEGAL_NOW,
        f"Session {session.generation} of {session.state.deployment} is {session.phase}; {step.refusal}.",
        remedy="Look at its phase with `stoker ps` and try again.",
        details={"generation": session.generation, "phase": session.phase},
    )


def deployment_of(state: KernelState, session: Session) -> Deployment | None:
    return state.deployments.get(session.state.deployment)
