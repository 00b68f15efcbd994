"""What must hold after every step of a kernel, checked where it happens (PUBLIC through `Simulation`).

The promises of the design (no over-commit, free means proven free, nobody forgotten) and the rules that carry them:
the edges of S-5, evictions of S-9, places of R-11 to R-14, the order of events of C-13. A breach is told at once to
``broken``; nothing here repairs, waits or decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stoker.domain.events import faults_of
from stoker.domain.lifecycle import LEGAL, Step
from stoker.domain.session import Liveness, Phase, Reason, SessionState
from stoker.ids import Generation, PoolId
from stoker.runtime.state import Deployment, Session
from stoker.runtime.wiring import Runtime
from stoker.testing.fake_units import FakeHost

_MAY_HAVE_GRANTS = frozenset({Phase.READY, Phase.DRAINING, Phase.STOPPING})
# A life without a start intent passes `stopping` within one step (S-20, T6).
_AT_ONCE = frozenset({(Phase.PREPARING, Phase.GONE)})
_LOADS = frozenset({"session.load-completed", "session.load-failed", "session.load-cancelled"})
# Virtual time stands still in a circle of steps, so nothing else would ever end it.
_MOST_AT_ONCE = 20_000
_DEFECTS = ("stoker_kernel_missed_wakeups_total", "stoker_kernel_faults_total")


class Promises:
    """Watches one runtime. ``ghosts`` are generations given up by force (S-32): they may run without a reservation.

    ``is_over`` says that the daemon is dead: its state means nothing any more. ``has_injected_defect`` is for tests
    that lose a wake-up on purpose to see the safety net catch it; it silences exactly what the net is there for.
    """

    def __init__(
        self,
        runtime: Runtime,
        host: FakeHost,
        *,
        ghosts: set[Generation],
        broken: Callable[[str], None],
        is_over: Callable[[], bool],
        told: Callable[[dict[str, Any]], None],
    ) -> None:
        self._runtime, self._host, self._ghosts = runtime, host, ghosts
        self._state = runtime.kernel.state
        self._broken, self._is_over, self._told = broken, is_over, told
        self._seq = 0
        self._budgets = dict(self._state.ledger.budgets)
        self._overdraft: dict[PoolId, int] = {}
        self._is_new_step = True
        self._instant, self._steps_at_once = -1.0, 0
        self.has_injected_defect = False
        runtime.kernel.machine.after.append(self._life_stepped)
        self._watch_steps()
        self._watch_events()
        self._watch_grants()

    # -- where it listens ------------------------------------------------------------------------------------------

    def _watch_steps(self) -> None:
        kernel = self._runtime.kernel
        drain = kernel.drain

        def drained() -> Any:
            if self._is_new_step and not self._is_over():
                self._is_new_step = False
                self.check()
            return drain()

        kernel.drain = drained  # type: ignore[method-assign]
        for name in ("apply", "ask", "leave"):
            setattr(kernel, name, self._marking(getattr(kernel, name)))

    def _marking(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any) -> Any:
            self._is_new_step = True
            if self._state.now != self._instant:
                self._instant, self._steps_at_once = self._state.now, 0
            self._steps_at_once += 1
            if self._steps_at_once > _MOST_AT_ONCE:
                self._broken(f"{_MOST_AT_ONCE} steps of the kernel took no time at all")
            return step(*arguments)

        return stepped

    def _watch_events(self) -> None:
        bus = self._runtime.bus
        publish = bus.publish

        def published(event: Any) -> None:
            if self._is_over():
                return
            publish(event)
            flat = event.flat()
            if event.seq != self._seq + 1:
                self._broken(f"event {event.seq} follows event {self._seq}")
            self._seq = event.seq
            problems = faults_of(event)
            if problems:
                self._broken(f"event {flat['event']} does not match its table: {problems}")
            self._told(flat)

        bus.publish = published  # type: ignore[method-assign]

    def _watch_grants(self) -> None:
        intake = self._runtime.kernel.intake
        grant = intake._grant  # noqa: SLF001 - the one place where grants are made

        def granted(ticket: Any, deployment: Deployment, session: Session) -> None:
            if session.phase is not Phase.READY:
                self._broken(f"a place is granted at {session.generation}, which is {session.phase}")
            if session.earmarked_for is not None:
                self._broken(f"a place is granted at {session.generation}, earmarked for {session.earmarked_for}")
            if session.state.liveness is Liveness.DEGRADED:
                self._broken(f"a place is granted at {session.generation}, which is degraded")
            if session.in_flight >= session.width:
                self._broken(f"{session.generation} has {session.in_flight} of {session.width} places taken")
            grant(ticket, deployment, session)

        intake._grant = granted  # type: ignore[method-assign] # noqa: SLF001

    def _life_stepped(self, session: Session, before: SessionState, step: Step) -> None:
        """S-5 and S-9, at the edge itself."""
        was, becomes = before.phase, step.state.phase
        if becomes is Phase.GONE and step.state.confirmed_by == "force-release":
            self._ghosts.add(session.generation)
        if was is becomes:
            return
        if becomes not in LEGAL[was] and (was, becomes) not in _AT_ONCE:
            self._broken(f"{session.generation} went from {was} to {becomes}")
        if step.state.reason is Reason.EVICTED and before.reason is not Reason.EVICTED:
            if session.grants:
                self._broken(f"{session.generation} is evicted with {len(session.grants)} requests in flight")
            if session.pinned or was is not Phase.READY:
                self._broken(f"{session.generation} is evicted though it is {was} (pinned: {session.pinned})")

    # -- what holds at rest ----------------------------------------------------------------------------------------

    def check(self) -> None:
        self._check_ledger()
        self._check_lives()
        for deployment in self._state.deployments.values():
            self._check_places(deployment)
        waiting = {ticket for deployment in self._state.deployments.values() for ticket in deployment.tickets}
        if waiting != set(self._state.waiting):
            self._broken("waiting tickets disagree with the queues")
        if not self.has_injected_defect:
            self._check_defects()

    def _check_ledger(self) -> None:
        """L-1 to L-3: an overdraft comes only from a lowered budget, or with what an earlier run left; it only shrinks.

        A run that starts with a smaller budget than the last one had meets leftovers that no longer fit (S-94).
        """
        ledger = self._state.ledger
        for pool, budget in ledger.budgets.items():
            overdraft = ledger.overdraft(pool)
            is_given = budget != self._budgets[pool] or self._state.phase == "starting"
            allowed = overdraft if is_given else self._overdraft.get(pool, 0)
            if overdraft > allowed:
                self._broken(f"{pool} is over-committed by {overdraft} bytes; {allowed} come from a lowered budget")
            self._budgets[pool], self._overdraft[pool] = budget, overdraft
        held = {generation: s.state.reservation for generation, s in self._state.sessions.items()}
        if any(s.phase is Phase.GONE for s in self._state.sessions.values()):
            self._broken("a life that is gone is still on the books")
        if dict(ledger.reservations) != held:
            self._broken(f"reservations {_brief(ledger.reservations)} are not those of the sessions {_brief(held)}")

    def _check_lives(self) -> None:
        state = self._state
        if state.phase == "ready":  # before that, units of the run before may not have been met yet
            alive = {unit.plan.generation for unit in self._host.alive()}
            unheld = alive - set(state.sessions) - self._ghosts
            if unheld:
                self._broken(f"units {sorted(unheld)} run but hold no reservation")
        seen: set[tuple[str, int]] = set()
        for session in state.sessions.values():
            key = (session.state.deployment, session.state.replica)
            if key in seen:
                self._broken(f"replica {key} has two lives")
            seen.add(key)
            deployment = state.deployments.get(session.state.deployment)
            if session.phase is Phase.RESERVED and deployment and key[1] >= max(1, deployment.spec.replicas):
                self._broken(f"a life of replica {key} begins, and {key[0]} may have {deployment.spec.replicas}")
            if session.grants and session.phase not in _MAY_HAVE_GRANTS:
                self._broken(f"{session.generation} is {session.phase} and has grants")

    def _check_places(self, deployment: Deployment) -> None:
        """R-14, and that nobody waits beside a place that is free for it (R-6)."""
        sessions = self._state.of(deployment)
        grants = sum(len(session.grants) for session in sessions)
        if grants != deployment.in_flight:
            self._broken(f"{deployment.name} counts {deployment.in_flight} in flight and has {grants} grants")
        if set(deployment.queue) != set(deployment.tickets):
            self._broken(f"{deployment.name}'s queue and tickets disagree")
        # While changed settings are being proven, nobody is served by the old ones (S-12).
        if deployment.queue and not deployment.changing and not self.has_injected_defect:
            for session in sessions:
                if _takes(session) and session.in_flight < session.width:
                    self._broken(f"a ticket of {deployment.name} waits beside a free place at {session.generation}")

    def _check_defects(self) -> None:
        for name in _DEFECTS:
            if sum(self._state.meters._series.get(name, {}).values()):  # type: ignore[arg-type] # noqa: SLF001
                self._broken(f"{name} counts a defect")


def _takes(session: Session) -> bool:
    is_open = session.phase is Phase.READY and session.door is not None and session.earmarked_for is None
    return is_open and session.state.liveness is not Liveness.DEGRADED


def _brief(reservations: Mapping[Generation, Mapping[PoolId, int]]) -> dict[int, int]:
    return {int(generation): sum(amounts.values()) for generation, amounts in sorted(reservations.items())}


def check_stories(events: Iterable[Mapping[str, Any]], broken: Callable[[str], None]) -> None:
    """S-22, over a whole run: at most one load outcome and one crash, the crash after the load; one end, the end last.

    What is added to an attempt after the end is no event.
    """
    stories: dict[int, list[str]] = {}
    for event in events:
        if event["event"].startswith("session.") and "generation" in event:
            stories.setdefault(event["generation"], []).append(event["event"])
    for generation, names in stories.items():
        outcomes = [name for name in names if name in _LOADS]
        if len(outcomes) > 1 or names.count("session.ended") > 1:
            broken(f"generation {generation} told its story twice: {names}")
        crashes = names.count("session.crashed")
        if crashes > 1 or (crashes and outcomes != ["session.load-completed"]):
            broken(f"generation {generation} crashed twice, or before it was ready: {names}")
        if "session.ended" in names and names[-1] != "session.ended":
            broken(f"generation {generation} spoke after its end: {names}")
