"""One life, carried out: launch, probe, watch, stop (S-7, S-20, S-85).

A supervisor carries the effects of one generation one after another and posts what happened back as observations. It
decides nothing. Whatever goes wrong in it ends its own session and no other (S-115).
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, assert_never

import anyio
import anyio.abc

from stoker.domain.context import LaunchPlan
from stoker.domain.lifecycle_events import exit_fields
from stoker.domain.session import (
    ArmTimer,
    CancelEffects,
    ClaimRoom,
    CleanUp,
    CloseUpstream,
    Effect,
    ExitExplained,
    ExitFacts,
    ExplainExit,
    Failure,
    ForceReleaseRecorded,
    OpenUpstream,
    Prepared,
    PrepareFailed,
    PrepareUnit,
    Publish,
    RecordAttempt,
    RecordForceRelease,
    ReleaseRoom,
    ReleaseStartLease,
    RoomClaimed,
    RoomDenied,
    SavePromptCache,
    Started,
    StartFailed,
    StartUnit,
    StopConfirmed,
    StopUnconfirmed,
    StopUnit,
    SupervisorFailed,
    UnitExited,
    WatchLoad,
    WatchUnit,
)  # fmt: skip
from stoker.errors import ErrorCode, HostError, StokerError
from stoker.ids import Generation, Scope
from stoker.ports import units as host
from stoker.ports.clock import Clock
from stoker.ports.engines import ExitSeen, Seen
from stoker.ports.journal import Attempt, Journal, Residue, SessionRow
from stoker.ports.models import Models
from stoker.ports.threads import Threads
from stoker.ports.upstream import Probes
from stoker.runtime.inputs import Launched
from stoker.runtime.launching import Life, make_plan
from stoker.runtime.outbox import Assignment
from stoker.runtime.readiness import LoadWatch, Patience, exit_facts, watch_liveness
from stoker.runtime.rooms import Rooms
from stoker.runtime.tickets import Door
from stoker.runtime.uses import Upstreams

_T2_S, _T3_S, _T4_S, _CLEAN_UP_S = 5.0, 2.0, 1.0, 60.0  # bounds of S-20
_START_S, _STOP_EXTRA_S = 15.0, 20.0  # beyond the host's own limits of S-28
_JOURNAL_S = 5.0  # how long an outcome waits for a journal that does not answer
_INSPECT_EVERY_S = 1.0
_GHOST_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every supervisor works with. ``post`` hands one observation to the kernel, synchronously."""

    scope: Scope
    units: host.Units
    journal: Journal
    models: Models
    probes: Probes
    threads: Threads
    upstreams: Upstreams
    rooms: Rooms
    clock: Clock
    folders: Life
    patience: Patience
    post: Callable[[Any], None]
    now: Callable[[], float]


class Supervisor:
    """Carries the effects of one generation until it is cleaned up."""

    def __init__(self, assignment: Assignment, around: Surroundings) -> None:
        self.assignment = assignment
        self._around = around
        self._inbox: deque[Effect] = deque()
        self._called = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._current: anyio.CancelScope | None = None
        self._watching: list[_Watch] = []
        self._prepared: host.Prepared | None = None
        self._unit: host.UnitIdentity | None = assignment.leftover
        self._endpoint: host.Endpoint | None = None
        self._load: LoadWatch | None = None
        self._first_start: float | None = None
        self._done = False
        self._reason = ""
        self._row_open = assignment.prospect is None  # a leftover has its row already
        self._confirmed_by = "absent"
        self._tail: deque[str] = deque(maxlen=200)
        self._attempt = _blank_attempt(assignment, around.clock.wall())

    @property
    def generation(self) -> Generation:
        return self.assignment.generation

    def give(self, effect: Effect, reason: str = "") -> None:
        """Take one effect; those that end something also cancel what is under way (T2)."""
        self._reason = reason or self._reason
        if isinstance(effect, CancelEffects | ReleaseRoom) and self._current is not None:
            self._current.cancel()
        self._inbox.append(effect)
        self._called.set()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            while not self._done:
                if not self._inbox:
                    self._called = anyio.Event()
                    await self._called.wait()
                    continue
                await self._guarded(self._inbox.popleft())
            tasks.cancel_scope.cancel()

    async def _guarded(self, effect: Effect) -> None:
        """The supervisor's boundary: a failure becomes an event of this life, an unsure stop stays unsure (S-21)."""
        try:
            await self._carry(effect)
        except Exception as failed:  # noqa: BLE001
            if isinstance(effect, StopUnit):
                cause = str(host.UnconfirmedCause.RUNTIME_ERROR)
                self._around.post(StopUnconfirmed(self.generation, cause, detail=repr(failed)))
            elif not isinstance(effect, CleanUp | RecordAttempt | CloseUpstream):
                self._around.post(SupervisorFailed(self.generation, repr(failed)))
            else:
                await self._leave_residue(effect, failed)

    async def _carry(self, effect: Effect) -> None:
        match effect:
            case ClaimRoom():
                await self._cancellable(self._claim_room)
            case ReleaseRoom():
                self._around.rooms.release(self.generation)
            case ReleaseStartLease():
                self._around.rooms.allocated(self.generation)
            case PrepareUnit():
                await self._cancellable(self._prepare)
            case StartUnit(attempt=attempt):
                await self._start(attempt)
            case WatchLoad():
                self._watch(self._watch_load)
            case WatchUnit():
                self._watch(self._watch_unit)
            case CloseUpstream(code=code):
                with anyio.move_on_after(_T3_S):
                    await self._around.upstreams.close(self.generation, code)
            case ExplainExit():
                await self._explain(effect)
            case StopUnit(grace_s=grace_s):
                await self._stop(grace_s)
            case CancelEffects():
                await self._cancel_watches()
            case CleanUp():
                await self._clean_up()
            case RecordAttempt():
                await self._record(effect)
            case RecordForceRelease(by=by):
                await self._around.journal.intend(self.generation, "force-release", self._around.clock.wall())
                self._around.post(ForceReleaseRecorded(self.generation, by))
                self._watch(self._haunt)
            case SavePromptCache():
                pass  # asked of engines whose adapter can save conversations (C-34); no adapter here states that
            case OpenUpstream() | ArmTimer() | Publish():
                raise AssertionError(f"{effect} is not carried by a supervisor")
            case _:
                assert_never(effect)

    # -- load ------------------------------------------------------------------------------------------------------

    async def _cancellable(self, act: Callable[[], Awaitable[None]]) -> None:
        with anyio.CancelScope() as scope:
            self._current = scope
            try:
                await act()
            finally:
                self._current = None

    async def _claim_room(self) -> None:
        """Memory counts as free when it is proven free (M-76)."""
        plan = self._plan()
        denied = await self._around.rooms.claim(self.generation, plan.footprint)
        if denied is None:
            self._around.post(RoomClaimed(self.generation))
        else:
            self._around.post(RoomDenied(self.generation, denied))

    def _plan(self) -> LaunchPlan:
        plan = self.assignment.plan
        assert isinstance(plan, LaunchPlan)
        return plan

    async def _prepare(self) -> None:
        """Row and reservation first, then the life directory (kill points K2 to K4)."""
        assignment, around = self.assignment, self._around
        assert assignment.prospect is not None
        assert assignment.spec is not None
        life_dir = around.folders.life_dir(self.generation)
        self._row_open = True
        try:
            await around.journal.write_session(_row(assignment, life_dir, around.clock.wall()))
            await around.threads(around.models.check_unchanged, assignment.prospect.model)
            unit_plan, launch, token = make_plan(assignment, self._plan(), around.scope, around.folders, around.clock)
        except StokerError as error:
            self._around.post(PrepareFailed(self.generation, _failure(error)))
            return
        around.post(Launched(self.generation, launch.shown, tuple(sorted(launch.env)), token))
        answer = await around.units.prepare(unit_plan)
        match answer:
            case host.Prepared():
                self._prepared = answer
                await around.threads(around.folders.make_folder, around.folders.slots_dir(self.generation))
                around.post(Prepared(self.generation))
            case host.PrepareFailed(kind=kind, detail=detail):
                message = f"{assignment.deployment} could not be prepared: {detail or kind}."
                around.post(PrepareFailed(self.generation, Failure(kind, message, kind=kind)))

    async def _start(self, attempt: int) -> None:
        """Intent, act, outcome (S-85). Not cancelled once the intent is written: its unit may exist (T2)."""
        around, prepared = self._around, self._prepared
        assert prepared is not None
        self._first_start = around.now() if self._first_start is None else self._first_start
        try:
            act = await around.journal.intend(self.generation, "start", around.clock.wall())
        except HostError as error:
            around.post(StartFailed(self.generation, _failure(error), may_exist=False))
            return
        answer: host.StartAnswer = host.StartFailed("no-answer", may_exist=True, detail="the host did not answer")
        with anyio.move_on_after(_START_S, shield=True):
            answer = await around.units.start(prepared, prepared.plan.fixed_port)
        match answer:
            case host.Started(identity=identity, endpoint=endpoint):
                self._unit, self._endpoint = identity, endpoint
                await self._written(around.journal.write_unit(identity, "running"))
                await self._written(around.journal.outcome(act, "started", around.clock.wall()))
                kind = "unix" if endpoint.socket else "tcp"
                around.post(Started(self.generation, identity, endpoint, kind))
            case host.StartFailed(kind=kind, may_exist=may_exist, detail=detail):
                await self._written(around.journal.outcome(act, f"failed:{kind}", around.clock.wall()))
                retry = kind == ErrorCode.PORT_IN_USE and prepared.plan.fixed_port is None
                message = f"{self.assignment.deployment} could not be started (attempt {attempt}): {detail or kind}."
                failure = Failure(kind, message, kind=kind)
                around.post(StartFailed(self.generation, failure, may_exist=may_exist, retry_port=retry))

    async def _written(self, write: Awaitable[None]) -> bool:
        """An outcome that cannot be written does not undo the act: what is open stays "maybe running" (S-86)."""
        with anyio.move_on_after(_JOURNAL_S):
            try:
                await write
            except HostError as error:
                self._tail.append(f"journal: {error.message}")
            else:
                return True
        return False

    # -- watching --------------------------------------------------------------------------------------------------

    def _watch(self, act: Callable[[], Awaitable[None]]) -> None:
        assert self._tasks is not None
        watch = _Watch(anyio.CancelScope(), anyio.Event())
        self._watching.append(watch)
        self._tasks.start_soon(self._run_watch, watch, act)

    async def _run_watch(self, watch: _Watch, act: Callable[[], Awaitable[None]]) -> None:
        try:
            with watch.scope:
                await act()
        except Exception as failed:  # noqa: BLE001 - the same boundary as `_guarded`
            self._around.post(SupervisorFailed(self.generation, repr(failed)))
        finally:
            watch.ended.set()

    async def _cancel_watches(self) -> None:
        with anyio.move_on_after(_T2_S, shield=True):
            for watch in self._watching:
                watch.scope.cancel()
            for watch in self._watching:
                await watch.ended.wait()
        self._watching.clear()

    async def _watch_unit(self) -> None:
        """The end of the unit, by push; doubt falls back to looking (S-109)."""
        unit, units = self._unit, self._around.units
        assert unit is not None
        answer = await units.wait(unit)
        while isinstance(answer, host.Lost):
            await anyio.sleep(_INSPECT_EVERY_S)
            seen = await units.inspect(unit)
            if isinstance(seen, host.Exited | host.Absent):
                answer = seen
        ended = answer.exit if isinstance(answer, host.Exited) else None
        facts = exit_facts(ended) if ended is not None else ExitFacts(by="host", wall=self._around.clock.wall())
        self._around.post(UnitExited(self.generation, facts))

    async def _watch_load(self) -> None:
        assignment, unit = self.assignment, self._unit
        assert unit is not None
        assert self._endpoint is not None
        assert self._prepared is not None
        assert self._first_start is not None
        self._load = LoadWatch(
            assignment, self._plan(), self._prepared.plan, unit, self._endpoint, self._around, self._tail,
            self._first_start,
        )  # fmt: skip
        ready = await self._load.run()
        if ready is None:
            return
        self._around.post(ready)
        await self._written(self._around.journal.write_phase(self.generation, "ready"))
        self._attempt = _ready(self._attempt, ready.stages_ms)
        if self._load.usage is not None:
            await self._written(self._around.journal.write_processes(self.generation, self._load.usage.members))

    def watch_ready(self, door: Door) -> None:
        """The door is open: look whether the engine still answers, and keep reading its log (S-109, S-110)."""
        if self._unit is not None and self._load is not None:
            load = self._load
            self._watch(load.follow_log)
            self._watch(lambda: watch_liveness(door, load, self._around))

    # -- end -------------------------------------------------------------------------------------------------------

    async def _explain(self, effect: ExplainExit) -> None:
        """What the unit's end means, from its own log (S-105, S-111); an answer always comes within T4's bound."""
        assignment = self.assignment
        failure = _unexplained(assignment, effect.exit)
        if assignment.prospect is not None:
            if self._load is not None:
                with anyio.move_on_after(_T4_S):
                    await self._load.read_rest()
            seen = self._load.seen if self._load is not None else Seen()
            facts = effect.exit
            ended = host.Exit(facts.code, facts.signal, facts.oom_killed, facts.wall, facts.by)
            verdict = assignment.prospect.adapter.explain(
                ExitSeen(ended, str(effect.phase), tuple(self._tail), self._plan(), seen)
            )
            failure = _outranked(
                Failure(verdict.kind, verdict.message, verdict.cause, verdict.remedy, verdict.numbers, verdict.excerpt),
                facts,
                assignment.deployment,
            )
        self._attempt = replace(self._attempt, exit=exit_fields(effect.exit))
        self._around.post(ExitExplained(self.generation, failure))

    async def _stop(self, grace_s: float | None) -> None:
        """Intent, stop, and the confirmed outcome written before it is told (T6, T7). Never depends on the journal."""
        around = self._around
        act = await self._stop_intended()
        if grace_s is None:
            grace_s = self._prepared.plan.stop_grace_s if self._prepared is not None else 5.0
        answer: host.StopAnswer = host.Unconfirmed(host.UnconfirmedCause.NO_ANSWER, "the host did not answer")
        with anyio.move_on_after(grace_s + _STOP_EXTRA_S):
            if self._unit is None:
                life_dir = self.assignment.life_dir or around.folders.life_dir(self.generation)
                self._unit = await around.units.recover(self.generation, life_dir)
            answer = await around.units.stop(self._known_unit(), grace_s)
        wall = around.clock.wall()
        match answer:
            case host.Confirmed(exit=ended, by=by):
                if act is not None:
                    await self._written(around.journal.outcome(act, "confirmed", wall))
                self._confirmed_by = by
                closing = around.journal.end_session(self.generation, self._reason, by, wall)
                self._row_open = not await self._written(closing)
                around.post(StopConfirmed(self.generation, by, exit_facts(ended) if ended else None))
            case host.Unconfirmed(cause=cause, detail=detail, survivors=survivors):
                if act is not None:
                    await self._written(around.journal.outcome(act, f"unconfirmed:{cause}", wall))
                await self._written(around.journal.write_phase(self.generation, "stop-unconfirmed"))
                around.post(StopUnconfirmed(self.generation, str(cause), detail, survivors))

    async def _stop_intended(self) -> int | None:
        """The intent of a stop; a journal that refuses it, or does not answer, keeps no stop from going on (S-86)."""
        with anyio.move_on_after(_JOURNAL_S):
            try:
                return await self._around.journal.intend(self.generation, "stop", self._around.clock.wall())
            except HostError as error:
                self._tail.append(f"journal: {error.message}")
        return None

    async def _haunt(self) -> None:
        """A released unit stays on the books as a ghost and is stopped again until it is gone (S-32)."""
        while not self._done:
            await anyio.sleep(_GHOST_EVERY_S)
            answer = await self._around.units.stop(self._known_unit(), 0.0)
            if isinstance(answer, host.Confirmed):
                self.give(CleanUp(self.generation))
                return

    def _known_unit(self) -> host.UnitIdentity:
        """The unit as recorded, or, if nothing is, the one that may lie in the life directory."""
        life_dir = self.assignment.life_dir or self._around.folders.life_dir(self.generation)
        return self._unit or host.UnitIdentity(self.generation, self._around.units.kind, life_dir=life_dir)

    async def _clean_up(self) -> None:
        """T8: what is left of a unit that is gone. A failure leaves a residue row and a warning, nothing more."""
        self._done = True
        around = self._around
        if self._row_open:  # no unit was begun, or the journal would not have its end then (S-86)
            wall = around.clock.wall()
            await self._written(around.journal.end_session(self.generation, self._reason, self._confirmed_by, wall))
        answer: host.RemoveAnswer = host.Kept(f"no answer within {_CLEAN_UP_S:.0f} s")
        with anyio.move_on_after(_CLEAN_UP_S):
            answer = await around.units.remove(self._known_unit())
        if isinstance(answer, host.Kept):
            await self._leave_residue(CleanUp(self.generation), answer.cause)

    async def _leave_residue(self, effect: Effect, cause: object) -> None:
        around = self._around
        what = f"{type(effect).__name__}: {cause!r}"
        residue = Residue(self.generation, what, around.folders.life_dir(self.generation), around.clock.wall())
        await self._written(around.journal.write_residue(residue))

    async def _record(self, effect: RecordAttempt) -> None:
        self._attempt = _outcome(self._attempt, effect, tuple(self._tail), self._around.clock.wall())
        await self._written(self._around.journal.write_attempt(self._attempt))


@dataclass(frozen=True, slots=True)
class _Watch:
    scope: anyio.CancelScope
    ended: anyio.Event


def _row(assignment: Assignment, life_dir: str, wall: float) -> SessionRow:
    prospect = assignment.prospect
    assert prospect is not None
    return SessionRow(
        assignment.generation, assignment.deployment, assignment.replica, prospect.model.reference,
        prospect.adapter.id, prospect.installation.installation_id, "process", assignment.load_key, "preparing",
        {str(pool): amount for pool, amount in assignment.reservation.items()}, life_dir, created=wall,
    )  # fmt: skip


def _failure(error: StokerError) -> Failure:
    numbers = {key: value for key, value in error.details.items() if isinstance(value, int)}
    return Failure(str(error.code), error.message, remedy=error.remedy, numbers=numbers)


def _unexplained(assignment: Assignment, ended: ExitFacts) -> Failure:
    how = f"signal {ended.signal}" if ended.signal else f"status {ended.code}"
    return Failure("engine-exited", f"The engine of {assignment.deployment} exited with {how}.")


def _outranked(verdict: Failure, ended: ExitFacts, deployment: str) -> Failure:
    """What the machine knows decides before what the log says; the log's lines and numbers stay (S-105, 3 and 4)."""
    if ended.oom_killed:
        message = f"The engine of {deployment} was ended because the memory allowed on this machine ran out."
        return replace(verdict, code="host-out-of-memory", message=message, remedy="Free memory, or use less.")
    if ended.by != "us" and (ended.signal == signal.SIGKILL or ended.code == 128 + signal.SIGKILL):
        message = f"The engine of {deployment} was killed from outside (signal 9)."
        return replace(verdict, code="killed", message=message, remedy="See who ended it: an operator, or the system.")
    return verdict


def _blank_attempt(assignment: Assignment, wall: float) -> Attempt:
    return Attempt(assignment.generation, assignment.deployment, assignment.replica, "loading", started=wall)


def _ready(attempt: Attempt, stages_ms: Any) -> Attempt:
    return replace(attempt, stages_ms=dict(stages_ms))


def _outcome(attempt: Attempt, effect: RecordAttempt, lines: tuple[str, ...], wall: float) -> Attempt:
    failure = effect.failure
    return replace(
        attempt,
        outcome=effect.outcome,
        code=failure.code if failure else None,
        reason=failure.kind if failure else None,
        message=failure.message if failure else "",
        numbers=dict(failure.numbers) if failure else {},
        lines=lines if failure else (),
        ended=wall,
    )
