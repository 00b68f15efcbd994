"""Who starts next, and who must go for it: contenders in order, one decision each (S-13, M-70, M-74, R-26 to R-31).

A contender is a deployment that wants a replica up and has none for it. Each pass looks at the world afresh; nothing
is remembered between passes but marks on sessions (earmarks) and alarms for the times at which a look is due.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stoker.domain import lifecycle
from stoker.domain.admission import Admit, Demand, EvictThenAdmit, Refuse, Wait, World, decide
from stoker.domain.budget import Ledger
from stoker.domain.context import LaunchPlan
from stoker.domain.residency import Resident, earmark_at
from stoker.domain.restart import BackOff, Held, begin_trial, may_start
from stoker.domain.session import Cancel, Phase, Reason, RetryStop, Stop
from stoker.errors import ErrorCode, StokerError, error_for
from stoker.ids import DeploymentName, Generation, PoolId, unit_name
from stoker.runtime.intake import Intake, crash_loop_held
from stoker.runtime.machine import Machine
from stoker.runtime.outbox import Assignment, FetchGenerations, Resolve, Spawn
from stoker.runtime.state import LIVE, LOADING, Deployment, Session, Want

_ENDING = frozenset({Phase.DRAINING, Phase.STOPPING})
_FORCED_RETRY_EVERY_S = 5.0
_DEFAULT_RELOAD_S = 5.0
_STOP_ESTIMATE_S = 1.0


@dataclass(frozen=True, slots=True)
class Contender:
    """One wish for memory. ``cause`` is the word of ``session.reserved``; extra replicas never evict (M-94)."""

    deployment: Deployment
    replica: int
    since: float
    cause: str
    want: Want | None = None
    may_evict: bool = True


class Room:
    def __init__(self, machine: Machine, intake: Intake) -> None:
        self._machine = machine
        self._state = machine.state
        self._intake = intake

    def plan(self) -> None:
        """Look at every contender in order of age, act on each verdict, and lift earmarks that nobody needs."""
        promised: dict[PoolId, int] = {}
        named: set[Generation] = set()
        wanted_by: dict[Generation, DeploymentName] = {}
        for contender in self._contenders():
            if not self._may_try(contender):
                continue
            self._try(contender, promised, named, wanted_by)
        self._lift_earmarks(wanted_by)

    # -- contenders ------------------------------------------------------------------------------------------------

    def _contenders(self) -> list[Contender]:
        if self._state.phase != "ready":
            return []
        found = [c for d in self._state.deployments.values() if (c := self._contender(d)) is not None]
        return sorted(found, key=lambda c: (c.since, c.deployment.name))

    def _contender(self, deployment: Deployment) -> Contender | None:
        if deployment.removing is not None:
            return None
        sessions = self._state.of(deployment)
        live = [session for session in sessions if session.phase in LIVE]
        taken = {session.state.replica for session in sessions}
        if (want := self._open_want(deployment, sessions)) is not None:
            return Contender(deployment, want.replica or 0, want.since, "load", want)
        head = deployment.queue.head()
        if head is not None:
            if not live:
                if self._ends_first(deployment, sessions, head.queued_at):
                    return None
                return Contender(deployment, _lowest_free(taken), head.queued_at, "request")
            room_to_grow = len(sessions) < deployment.spec.replicas
            if room_to_grow and not any(session.phase in LOADING for session in live):
                return Contender(deployment, _lowest_free(taken), head.queued_at, "replica", may_evict=False)
            return None
        if deployment.spec.pinned and not deployment.stopped_by_operator and not sessions:
            return Contender(deployment, 0, deployment.created_at, "pin")
        return None

    def _open_want(self, deployment: Deployment, sessions: list[Session]) -> Want | None:
        """The first explicit load that nothing stands in the way of: never a second copy beside one that ends.

        What is not proven gone is tried once more, and then its load is told so (S-13, check 5).
        """
        if deployment.changing:
            return None
        for want in list(deployment.wants):
            before_it = [s for s in sessions if want.replica in {None, s.state.replica}]
            if not before_it:
                return want
            for session in before_it:
                if session.phase is not Phase.STOP_UNCONFIRMED:
                    continue
                if session.last_forced_retry < want.since:
                    self._retry_stop(session)
                elif want in deployment.wants:
                    deployment.wants.remove(want)
                    self.on_want_failed(want, unconfirmed(session))
        return None

    def _ends_first(self, deployment: Deployment, sessions: list[Session], asked_at: float) -> bool:
        """The replica's last life has not ended yet: wait for it, or say that its end is not confirmed (S-13, 5)."""
        for session in sessions:
            if session.phase is not Phase.STOP_UNCONFIRMED:
                continue
            if session.last_forced_retry < asked_at:
                self._retry_stop(session)
            elif session.phase is Phase.STOP_UNCONFIRMED:
                self._intake.refuse_waiting(deployment, unconfirmed(session))
        return bool(sessions)

    def _may_try(self, contender: Contender) -> bool:
        """Holds, back-off, and the model's resolution come before memory (S-13, checks 4 to 7)."""
        deployment, state = contender.deployment, self._state
        replica = deployment.replica(contender.replica)
        match may_start(replica.restart, state.now):
            case BackOff(until=until):
                deployment.blocked_on = "back-off"
                state.alarms.at(until)
                return False
            case Held() as held:
                self._give_up(contender, crash_loop_held(deployment, held, state.now))
                if held.until is not None:
                    state.alarms.at(held.until)
                return False
            case _:
                pass
        if deployment.prospect_fresh:
            return True
        if not deployment.resolving:
            deployment.resolving = True
            self._machine.send(Resolve(deployment.spec))
        deployment.blocked_on = "load"
        return False

    def _give_up(self, contender: Contender, error: StokerError) -> None:
        """This wish cannot be met: its tickets and operations get the one error."""
        deployment = contender.deployment
        deployment.problem = error
        self._intake.refuse_waiting(deployment, error)
        if contender.want is not None and contender.want in deployment.wants:
            deployment.wants.remove(contender.want)
            self.on_want_failed(contender.want, error)
        if contender.cause == "pin":
            deployment.stopped_by_operator = True  # tried again by the next load, pin or request
            self._state.warnings.append(f"Pinned {deployment.name} is not up: {error.message}")

    def on_want_failed(self, want: Want, error: StokerError) -> None:
        """Set by the kernel: operations fail with their wants."""
        raise NotImplementedError

    # -- one decision ----------------------------------------------------------------------------------------------

    def _try(
        self,
        contender: Contender,
        promised: dict[PoolId, int],
        named: set[Generation],
        wanted_by: dict[Generation, DeploymentName],
    ) -> None:
        deployment, state = contender.deployment, self._state
        assert deployment.prospect is not None
        demand = Demand(
            deployment.name, contender.replica, deployment.prospect.request, contender.since, contender.may_evict
        )
        world = self._world(promised, named)
        verdict = decide(demand, world)
        self._publish_verdict(deployment, verdict, world)
        match verdict:
            case Admit(plan=plan):
                self._begin(contender, plan)
            case EvictThenAdmit(plan=plan, victims=victims, earmarks=earmarks):
                _add(promised, plan.footprint.charge)
                deployment.blocked_on = "memory"
                for generation in (*victims, *earmarks):
                    named.add(generation)
                    wanted_by[generation] = deployment.name
                self._earmark(contender, earmarks, world)
                if not earmarks:
                    self._evict(deployment, victims)
            case Wait(on=on, holders=holders, needed=needed):
                _add(promised, needed)
                deployment.blocked_on, deployment.blocked_by = on, holders
                if on == "stop-unconfirmed":
                    self._press_stops(holders)
            case Refuse() as refusal:
                if contender.cause != "replica":  # one more copy is a wish: its tickets wait for the others
                    self._give_up(contender, refused(refusal, deployment))
        state.alarms.at(contender.want.until if contender.want is not None else math.inf)

    def _world(self, promised: dict[PoolId, int], named: set[Generation]) -> World:
        """Memory now. What earlier contenders were promised is taken; what they have named will come back."""
        state = self._state
        reserved = {pool: state.ledger.reserved(pool) for pool in state.ledger.budgets}
        returning: dict[PoolId, int] = {}
        residents = []
        for session in state.sessions.values():
            if session.phase in _ENDING or session.generation in named:
                _add(returning, session.state.reservation)
            if session.generation not in named:
                residents.append(self._resident(session))
        return World(state.now, state.ledger.budgets, reserved, dict(promised), returning, tuple(residents))

    def _resident(self, session: Session) -> Resident:
        state = self._state
        deployment = state.deployments.get(session.state.deployment)
        earmarked = session.earmarked_for is not None
        waiting = 0 if deployment is None or earmarked else len(deployment.queue)
        has_callers = bool(deployment and (deployment.queue or deployment.wants or deployment.spec.pinned))
        return Resident(
            session.generation,
            session.state.deployment,
            session.state.replica,
            session.phase,
            session.state.reservation,
            pinned=session.pinned,
            in_flight=session.in_flight,
            waiting=waiting,
            last_used_at=session.last_end,
            ready_at=session.state.ready_at,
            demand_60s=sum(1 for at in session.recent_grants if at > state.now - 60),
            reload_s=self._reload_s(deployment, session.state.replica),
            earmarked=earmarked,
            abandoned_load=session.phase in LOADING and not has_callers and not session.operations,
            mean_service_s=deployment.mean_service_s if deployment else 1.0,
        )

    @staticmethod
    def _reload_s(deployment: Deployment | None, index: int) -> float:
        """Median of the last measured load times; unknown: bytes at 1 GB/s and 5 s (M-83)."""
        if deployment is None:
            return _DEFAULT_RELOAD_S
        times = sorted(deployment.replica(index).load_times_s)
        if times:
            return times[len(times) // 2]
        weight_bytes = deployment.prospect.model.facts.total_bytes if deployment.prospect else 0
        return weight_bytes / 1e9 + _DEFAULT_RELOAD_S

    def _swap_s(self, deployment: Deployment, index: int) -> float:
        """S of R-27: a stop and the load of this deployment."""
        return _STOP_ESTIMATE_S + self._reload_s(deployment, index)

    def swap_bound_s(self, deployment: Deployment) -> float:
        """W of R-27, for the replica that a first ticket would start."""
        limits = self._machine.limits
        return max(limits.swap_bound_s, limits.swap_bound_factor * self._swap_s(deployment, 0))

    # -- acting ----------------------------------------------------------------------------------------------------

    def _begin(self, contender: Contender, plan: LaunchPlan) -> None:
        """Register the session with its reservation in this step (S-13, check 11)."""
        deployment, state = contender.deployment, self._state
        prospect = deployment.prospect
        assert prospect is not None
        generation = next(state.generations, None)
        if generation is None:
            self._machine.send(FetchGenerations())
            return
        charge = plan.footprint.charge
        ledger = state.ledger.reserve(generation, charge)
        if not isinstance(ledger, Ledger):
            raise AssertionError(f"admitted {deployment.name} but {ledger.pool} is short")  # noqa: TRY004
        state.ledger = ledger
        last_deadline = max((state.now + deployment.spec.max_wait_s, state.now + self._machine.limits.claim_wait_s))
        step = lifecycle.reserved(
            generation=generation,
            deployment=deployment.name,
            replica=contender.replica,
            reservation=charge,
            unit_kind="process",
            unit_id=unit_name(state.scope, generation),
            stop_grace_s=deployment.spec.stop_grace_s,
            now=state.now,
            claim_wait_s=last_deadline - state.now,
            cause=contender.cause,
        )
        session = Session(
            step.state,
            model=prospect.model.reference,
            engine=prospect.adapter.id,
            installation=prospect.installation.installation_id,
            plan=plan,
            prospect=prospect,
            load_key=prospect.load_key,
            keep_alive_s=deployment.spec.keep_alive_s,
            pinned=deployment.spec.pinned,
            upstream_auth="none" if prospect.adapter.traits.token == "none" else "token",  # noqa: S105
            last_end=state.now,
        )
        state.sessions[generation] = session
        deployment.replica(contender.replica).generation = generation
        deployment.prospect_fresh = False
        deployment.problem = None
        replica = deployment.replica(contender.replica)
        if replica.restart.held_until is not None:  # its time is over: one trial (S-113)
            replica.restart = begin_trial(replica.restart)
            self._machine.announce("replica.released", deployment=deployment.name, replica=replica.index, by="trial")
        deployment.queue.stop_clock(state.now)
        if contender.want is not None:
            deployment.wants.remove(contender.want)
            if contender.want.operation is not None:
                session.operations.append(contender.want.operation)
                state.operations[contender.want.operation].asked_settings = contender.want.asked_settings
        self._machine.send(
            Spawn(
                Assignment(
                    generation, deployment.name, contender.replica, charge, prospect.load_key, deployment.spec,
                    prospect, plan,
                    load_timeout_s=(contender.want.load_timeout_s if contender.want else None)
                    or deployment.spec.load_timeout_s,
                )
            )
        )  # fmt: skip
        self._machine.enter(session, step)
        state.meters.count("stoker_session_starts_total", deployment.name, "begun")

    def _evict(self, deployment: Deployment, victims: tuple[Generation, ...]) -> None:
        state = self._state
        costs = [{"generation": generation, "cost": state.sessions[generation].in_flight} for generation in victims]
        self._machine.announce(
            "eviction.decided",
            **self._decision("eviction", deployment, "evict", list(victims), []),
            victims=costs,
            for_deployment=deployment.name,
            ticket_id=next(iter(deployment.queue), None),
            earmark_at=None,
        )
        for generation in victims:
            session = state.sessions[generation]
            state.meters.count("stoker_evictions_total", session.state.deployment, "memory")
            if session.phase in LOADING:
                self._machine.feed(session, Cancel(generation, Reason.ABANDONED, by="abandoned"))
            else:
                self._machine.feed(session, Stop(generation, Reason.EVICTED))

    def _earmark(self, contender: Contender, earmarks: tuple[Generation, ...], world: World) -> None:
        """Close busy victims to new grants once their time has come; several share the latest (R-27)."""
        if not earmarks:
            return
        limits = self._machine.limits
        residents = {resident.generation: resident for resident in world.residents}
        swap_s = self._swap_s(contender.deployment, contender.replica)
        due = max(
            earmark_at(
                since=contender.since,
                victim=residents[generation],
                swap_s=swap_s,
                bound_s=limits.swap_bound_s,
                bound_factor=limits.swap_bound_factor,
            )
            for generation in earmarks
        )
        contender.deployment.blocked_on, contender.deployment.blocked_by = "busy", earmarks
        if due > self._state.now:
            self._state.alarms.at(due)
            return
        for generation in earmarks:
            session = self._state.sessions[generation]
            if session.earmarked_for is None:
                session.earmarked_for = contender.deployment.name
                self._machine.announce_session(
                    session,
                    "session.earmarked",
                    {
                        "for_deployment": contender.deployment.name,
                        "since": self._state.wall,
                        "in_flight": session.in_flight,
                    },
                )
                self._state.stale_plan = True

    def _lift_earmarks(self, wanted_by: dict[Generation, DeploymentName]) -> None:
        """An earmark ends in the step in which nobody wants that memory any more (R-30)."""
        for session in list(self._state.sessions.values()):
            held_for = session.earmarked_for
            if held_for is None or session.generation in wanted_by or session.phase is not Phase.READY:
                continue
            session.earmarked_for = None
            self._machine.announce_session(
                session, "session.earmark-lifted", {"for_deployment": held_for, "cause": "not-needed"}
            )
            deployment = self._state.deployments.get(session.state.deployment)
            if deployment is not None:
                self._intake.grant_waiting(deployment)
                self._state.stale_plan = self._state.stale_plan or bool(deployment.wants)
            self._intake.arm_idle(session)

    def _retry_stop(self, session: Session) -> None:
        session.last_forced_retry = self._state.now
        self._machine.feed(session, RetryStop(session.generation))

    def _press_stops(self, holders: tuple[Generation, ...]) -> None:
        """A ticket waits for memory whose end is not confirmed: try again, at most every 5 s (S-30)."""
        for generation in holders:
            session = self._state.sessions[generation]
            again_at = session.last_forced_retry + _FORCED_RETRY_EVERY_S
            if session.phase is Phase.STOP_UNCONFIRMED and again_at <= self._state.now:
                self._retry_stop(session)
            self._state.alarms.at(max(again_at, self._state.now + 1))

    def _publish_verdict(self, deployment: Deployment, verdict: object, world: World) -> None:
        """One event per change of verdict, not per look (M-97)."""
        word, needed, would_evict = _describe(verdict)
        key = (word, tuple(would_evict))
        if deployment.last_verdict == key:
            return
        deployment.last_verdict = key
        self._state.meters.count("stoker_admissions_total", word)
        self._machine.announce(
            "admission.decided",
            **self._decision("admission", deployment, word, would_evict, reasons_of(verdict)),
            verdict=word,
            needed=needed,
            headroom={pool: world.budgets[pool] - world.reserved.get(pool, 0) for pool in world.budgets},
            would_evict=would_evict,
            plan_digest=_digest(verdict),
        )

    def _decision(
        self, kind: str, deployment: Deployment, outcome: str, chosen: list[Generation], reasons: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """The fields of a decision record (C-7): what it was about, what was looked at, and what was chosen."""
        state = self._state
        inputs = {
            "budget": dict(state.ledger.budgets),
            "reserved": {pool: state.ledger.reserved(pool) for pool in state.ledger.budgets},
        }
        candidates = [
            {"generation": s.generation, "phase": str(s.phase), "in_flight": s.in_flight, "pinned": s.pinned}
            for s in state.sessions.values()
        ]
        return {
            "decision_id": f"dec_{state.instance}_{state.seq + 1}",
            "kind": kind,
            "subject": f"deployment:{deployment.name}",
            "outcome": outcome,
            "inputs": inputs,
            "candidates": candidates,
            "chosen": list(chosen),
            "reasons": reasons,
        }


def reasons_of(verdict: object) -> list[dict[str, Any]]:
    """Why, as codes, sentences and numbers."""
    match verdict:
        case Refuse(code=code, message=message, needed_bytes=needed, headroom_bytes=headroom):
            numbers = {"needed_bytes": needed, "headroom_bytes": headroom}
            return [{"code": str(code), "message": message, "numbers": numbers}]
        case Wait(on=on, holders=holders):
            return [{"code": on, "message": f"waits: {on}", "numbers": {"holders": len(holders)}}]
        case Admit(plan=plan) | EvictThenAdmit(plan=plan):
            return [{"code": "planned", "message": reason, "numbers": {}} for reason in plan.reasons]
        case _:
            return []


def _lowest_free(taken: set[int]) -> int:
    index = 0
    while index in taken:
        index += 1
    return index


def _add(total: dict[PoolId, int], more: Any) -> None:
    for pool, amount in more.items():
        total[pool] = total.get(pool, 0) + amount


def _describe(verdict: object) -> tuple[str, dict[PoolId, int], list[Generation]]:
    match verdict:
        case Admit(plan=plan):
            return "admit", plan.footprint.charge, []
        case EvictThenAdmit(plan=plan, victims=victims, earmarks=earmarks):
            return "evict-then-admit", plan.footprint.charge, [*victims, *earmarks]
        case Wait(on=on, needed=needed):
            return f"wait-{on}", dict(needed), []
        case Refuse(code=code, pool=pool, needed_bytes=needed_bytes):
            return f"refuse-{code}", {pool: needed_bytes}, []
        case _:
            raise AssertionError(verdict)


def _digest(verdict: object) -> str | None:
    plan = getattr(verdict, "plan", None)
    return plan.digest if isinstance(plan, LaunchPlan) else None


def refused(refusal: Refuse, deployment: Deployment) -> StokerError:
    return error_for(
        refusal.code,
        refusal.message,
        remedy=refusal.remedy,
        details={
            "deployment": deployment.name, "pool": refusal.pool, "needed_bytes": refusal.needed_bytes,
            "headroom_bytes": refusal.headroom_bytes, "short_bytes": refusal.short_bytes,
            "would_fit_if": list(refusal.would_fit_if),
        },
    )  # fmt: skip


def unconfirmed(session: Session) -> StokerError:
    """The answer to whoever needs memory whose unit is not proven gone (S-31)."""
    state = session.state
    survivors = ", ".join(f"{s.name} (pid {s.pid})" for s in state.survivors) or "no process could be named"
    held = sum(state.reservation.values())
    return error_for(
        ErrorCode.STOP_UNCONFIRMED,
        f"The stop of {state.deployment} (generation {state.generation}) is not confirmed: {state.unconfirmed_cause}; "
        f"{survivors}. Its {held / 2**30:.2f} GiB stay reserved.",
        remedy=f"End what is left, then `stoker stop {state.generation}`; it is tried again by itself.",
        details={
            "generation": state.generation, "cause": state.unconfirmed_cause, "attempts": state.stop_attempts,
            "survivors": [{"pid": s.pid, "name": s.name, "bytes": s.bytes} for s in state.survivors],
            "reservation": dict(state.reservation),
        },
    )  # fmt: skip
