"""`ProcessUnits`: engines as processes, each owned by its guardian (S-26 to S-51).

An async context manager: leaving it closes every *control*, so guardians end what still runs; that is not a confirmed
stop. The process that opens it becomes a child subreaper, so what a lost guardian leaves falls to it (S-39). Units are
keyed by generation; the answers never come from a name, a port or a parent. Linux only: elsewhere construction fails.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from stoker.domain.reconcile import Finding, IdentityVerdict
from stoker.errors import ErrorCode, error_for
from stoker.hosts.process import binaries, leftovers, life, listeners, memory, ports
from stoker.hosts.process.guardian import PR_SET_CHILD_SUBREAPER, prctl
from stoker.hosts.process.guardians import PROGRAM, Spares, dismiss
from stoker.hosts.process.loglines import StoredLog, stored_lines
from stoker.hosts.process.procfs import boot_id, descendants, marked, verdict
from stoker.hosts.process.unit import GUARDIAN_LOST, LiveUnit
from stoker.ids import Generation, Scope, unit_name
from stoker.ports.units import (
    Absent,
    Changing,
    Confirmed,
    Endpoint,
    Exited,
    Found,
    InspectAnswer,
    Kept,
    LogLine,
    Lost,
    PrepareAnswer,
    Prepared,
    PrepareFailed,
    ProcessIdentity,
    RemoveAnswer,
    Running,
    StartAnswer,
    Started,
    StartFailed,
    StopAnswer,
    Unconfirmed,
    UnconfirmedCause,
    UnitIdentity,
    UnitPlan,
    Unknown,
    Usage,
    WaitAnswer,
)

PREPARE_S, START_S, INSPECT_S, REMOVE_S, SURVEY_S, STOP_EXTRA_S = 30.0, 10.0, 5.0, 30.0, 10.0, 7.0
KILL_CONFIRM_S = 4.0
_LOOK_S = 0.25
_THREADS = 8

# What stopped a start, by stage and errno; anything else is an installation that does not work.
_START_KINDS = {
    **dict.fromkeys((errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP, errno.EPERM), "entrypoint-missing"),
    **dict.fromkeys((errno.ENOEXEC, errno.ELIBBAD), "wrong-architecture"),
    **dict.fromkeys((errno.E2BIG, errno.EINVAL), "launch-invalid"),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN), "host-out-of-memory"),
}
_DISK_KINDS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "disk-full")

T = TypeVar("T")


class ProcessUnits:
    """The `Units` of this machine's processes, for one scope."""

    kind = "process"

    def __init__(self, scope: Scope, *, spares: int = 1, guardian_program: str = PROGRAM) -> None:
        _require_linux()
        self.scope = scope
        self._limiter = anyio.CapacityLimiter(_THREADS)
        self._spare_count = spares
        self._program = guardian_program
        self._units: dict[Generation, LiveUnit] = {}
        self._watched: set[LiveUnit] = set()
        self._tasks: TaskGroup | None = None
        self._spares: Spares | None = None

    async def __aenter__(self) -> Self:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._spares = Spares(self._tasks, self._limiter, self._program, self._spare_count)
        self._spares.refill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        assert self._spares is not None
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(kind, value, trace)
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as leaving:
                    leaving.start_soon(self._spares.close)
                    for unit in self._watched:
                        leaving.start_soon(dismiss, unit.guardian)

    # -- before and at the start -----------------------------------------------------------------------------------

    async def prepare(self, plan: UnitPlan) -> PrepareAnswer:
        life.check(plan)
        if life.socket_too_long(plan):
            return PrepareFailed("launch-invalid", f"the socket path {plan.endpoint.socket} is longer than 107 bytes")
        try:
            with anyio.fail_after(PREPARE_S):
                await self._blocking(lambda: life.write(plan))
        except TimeoutError:
            return PrepareFailed("no-answer", f"the life directory was not written within {PREPARE_S:.0f} s")
        except OSError as problem:
            return PrepareFailed(_DISK_KINDS.get(problem.errno or 0, "runtime-error"), str(problem))
        return Prepared(plan)

    async def start(self, prepared: Prepared, port: int | None) -> StartAnswer:
        plan = prepared.plan
        life.check(plan)
        former = self._units.get(plan.generation)
        if former is not None and not former.is_over:
            raise ValueError(f"generation {plan.generation} already has a unit")
        with anyio.move_on_after(START_S) as limit:
            return await self._start(plan, port, former.ring.cursor if former else 0)
        assert limit.cancelled_caught
        return StartFailed("no-answer", may_exist=True, detail=f"the unit did not start within {START_S:.0f} s")

    async def _start(self, plan: UnitPlan, port: int | None, cursor: int) -> StartAnswer:
        assert self._tasks is not None
        assert self._spares is not None
        try:
            file = await self._blocking(lambda: binaries.resolve(plan.argv[0], plan.env))
        except binaries.Privileged as refused:
            detail = f"{refused} is set-uid, set-gid or has file capabilities"
            return StartFailed("engine-binary-privileged", may_exist=False, detail=detail)
        except OSError as problem:
            return _failed(problem.errno or 0, "exec", str(problem))
        try:
            guardian = await self._spares.take()
        except OSError as problem:
            return _failed(problem.errno or 0, "exec", "no guardian could be started")
        unit: LiveUnit | None = None
        try:
            endpoint = await self._blocking(lambda: self._endpoint(plan, port))
            if isinstance(endpoint, StartFailed):
                return endpoint
            unit = LiveUnit(plan, endpoint, guardian, cursor)
            self._units[plan.generation] = unit
            self._tasks.start_soon(self._watch, unit)
            await guardian.tell("launch", **_launch(plan, file, endpoint.port))
            await unit.until(lambda: unit.is_known)
        finally:
            if unit is None:
                await dismiss(guardian)
            elif unit.identity is None and not unit.has_ended:
                guardian.control.half_close()  # cancelled or too late: the guardian ends it, at any stage
            self._spares.refill()
        return self._outcome(unit)

    def _outcome(self, unit: LiveUnit) -> StartAnswer:
        if unit.identity is not None:
            return Started(unit.identity, unit.endpoint)
        if unit.failure is not None:
            return _failed(unit.failure["errno"], unit.failure["stage"], unit.plan.argv[0])
        return StartFailed("no-answer", may_exist=True, detail=unit.fault or GUARDIAN_LOST)

    def _endpoint(self, plan: UnitPlan, port: int | None) -> Endpoint | StartFailed:
        if plan.endpoint.socket is not None or not plan.needs_port:
            return plan.endpoint
        held = {unit.endpoint.port for unit in self._units.values() if not unit.is_over}
        fixed = port or plan.fixed_port
        if fixed:
            if fixed not in held and ports.is_free(fixed, lingering_is_free=True):
                return replace(plan.endpoint, port=fixed)
            who = "another unit of ours" if fixed in held else listeners.holder(fixed) or "a process unknown to us"
            return StartFailed("port-in-use", may_exist=False, detail=f"port {fixed} is held by {who}")
        chosen = ports.choose_port(plan.port_range, held)
        if chosen is None:
            first, last = plan.port_range
            return StartFailed("port-in-use", may_exist=False, detail=f"no port of {first} to {last} is free")
        return replace(plan.endpoint, port=chosen)

    # -- while it lives --------------------------------------------------------------------------------------------

    async def inspect(self, unit: UnitIdentity) -> InspectAnswer:
        live = self._units.get(unit.generation)
        if live is not None:
            return _live_state(live)
        remains = await self._look(unit)
        if remains is None:
            return Unknown("the processes could not be looked at")
        if remains.guardian_verdict is IdentityVerdict.SAME:
            return Changing("orphan-work")
        if remains.which(IdentityVerdict.SAME):
            return Running()
        return Absent() if remains.is_empty else Unknown("identity-unreadable")

    async def wait(self, unit: UnitIdentity) -> WaitAnswer:
        live = self._units.get(unit.generation)
        if live is not None:
            await live.until(lambda: live.has_ended or live.is_lost)
            return Exited(live.exit) if live.has_ended else Lost(GUARDIAN_LOST)
        while True:
            match await self.inspect(unit):
                case Absent():
                    return Absent()
                case Exited() as ended:
                    return ended
                case Unknown(cause):
                    return Lost(cause)
            await anyio.sleep(_LOOK_S)

    def logs(self, unit: UnitIdentity, cursor: int = 0) -> AsyncIterator[LogLine]:
        live = self._units.get(unit.generation)
        if live is not None:
            return live.ring.follow(cursor)

        def stored() -> list[LogLine]:
            record = life.read_record(unit.life_dir) if unit.life_dir else None
            if record is None or record.generation != unit.generation:
                return []
            return [line for line in stored_lines(record.log_path) if line.cursor > cursor]

        return StoredLog(lambda: self._blocking(stored))

    async def owns_listener(self, unit: UnitIdentity, endpoint: Endpoint) -> bool | None:
        live = self._units.get(unit.generation)
        known = live.identity if live is not None else unit

        def pids() -> Iterator[int]:  # read only as far as needed; most engines listen in their first process
            if known is not None and known.main is not None and verdict(known.main) is IdentityVerdict.SAME:
                yield known.main.pid
            yield from (member.pid for member in self._members(unit))

        def ask() -> bool | None:
            try:
                return listeners.owned(endpoint, pids())
            except OSError:
                return None

        return await self._blocking(ask)

    async def usage(self, unit: UnitIdentity) -> Usage | None:
        try:
            measured = await self._blocking(lambda: memory.measure(self._members(unit)))
        except OSError:
            return None
        live = self._units.get(unit.generation)
        if live is not None and measured is not None and not live.is_lost:
            live.members = measured.members  # what could still be identified if the guardian were lost
        return measured

    # -- the end ---------------------------------------------------------------------------------------------------

    async def stop(self, unit: UnitIdentity, grace_s: float) -> StopAnswer:
        if grace_s < 0:
            raise ValueError("a grace is not negative")
        bound_s = grace_s + STOP_EXTRA_S
        with anyio.move_on_after(bound_s):
            live = self._units.get(unit.generation)
            return await (self._stop_live(live, grace_s) if live else self._stop_leftover(unit, grace_s))
        return Unconfirmed(UnconfirmedCause.NO_ANSWER, f"no answer within {bound_s:.0f} s")

    async def _stop_live(self, live: LiveUnit, grace_s: float) -> StopAnswer:
        if not live.has_ended and not live.is_lost:
            survivors = await live.stop(grace_s)
            if survivors is not None:
                return survivors
        if live.has_ended:
            return Confirmed(how="exited", exit=live.exit, by="guardian")
        await live.until(lambda: live.burial is not None)
        if isinstance(live.burial, Unconfirmed):
            live.burial = await self._bury(live)
        assert live.burial is not None
        return live.burial

    async def _stop_leftover(self, unit: UnitIdentity, grace_s: float) -> StopAnswer:
        return await leftovers.Burial(unit, self.scope, self._limiter, KILL_CONFIRM_S).run(grace_s)

    async def _bury(self, live: LiveUnit) -> StopAnswer:
        bare = UnitIdentity(live.plan.generation, self.kind, life_dir=live.plan.life_dir)
        known = replace(live.identity or bare, members=live.members)
        return await leftovers.Burial(known, self.scope, self._limiter, live.plan.kill_confirm_s).run(0.0)

    async def remove(self, unit: UnitIdentity) -> RemoveAnswer:
        live = self._units.get(unit.generation)
        if live is not None:
            if not live.is_over:
                return Kept("its end is not confirmed")
        elif not isinstance(await self.inspect(unit), Absent):
            return Kept("its end is not confirmed")
        folder = live.plan.life_dir if live is not None else unit.life_dir
        with anyio.move_on_after(REMOVE_S):
            if live is not None:
                await live.until(lambda: live.has_left)
            answer = await self._blocking(lambda: life.delete(folder, unit.generation))
            if not isinstance(answer, Kept):
                self._units.pop(unit.generation, None)
            return answer
        return Kept(f"not deleted within {REMOVE_S:.0f} s")

    # -- what earlier runs left ------------------------------------------------------------------------------------

    async def survey(self, scope: Scope) -> tuple[Found, ...]:
        def walk() -> tuple[Found, ...]:
            pids: dict[Generation, list[int]] = {}
            for identity, generation in marked(scope):
                pids.setdefault(generation, []).append(identity.pid)
            return tuple(
                Found(unit_name(scope, generation), scope, generation, "running", pids=tuple(sorted(found)))
                for generation, found in sorted(pids.items())
            )

        try:
            with anyio.move_on_after(SURVEY_S):
                return await self._blocking(walk)
        except OSError:
            return ()
        return ()

    async def recover(self, generation: Generation, life_dir: str) -> UnitIdentity | None:
        record = await self._blocking(lambda: life.read_record(life_dir))
        if record is None or record.generation != generation or record.scope != self.scope:
            return None
        return UnitIdentity(
            generation, self.kind, guardian=record.guardian, main=record.main, members=(record.main,), life_dir=life_dir
        )

    async def inspect_leftover(
        self, unit: UnitIdentity, *, intent_age_s: float | None = None, looked_again: int = 0
    ) -> Finding:
        """What the host says about a row of an earlier run, for `reconcile.judge`. ``unit`` may lack any identity."""
        remains = await self._look(unit)
        if remains is None:  # the host does not answer: alive until the opposite is known
            return Finding(kind=self.kind, members=(IdentityVerdict.UNREADABLE,), intent_age_s=intent_age_s)
        return leftovers.finding(remains, intent_age_s, looked_again)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _watch(self, unit: LiveUnit) -> None:
        """Cut short only by our own end, which then sees the guardian off."""
        self._watched.add(unit)
        await unit.watch(self._bury)
        self._watched.discard(unit)

    async def _look(self, unit: UnitIdentity) -> leftovers.Remains | None:
        try:
            with anyio.move_on_after(INSPECT_S):
                return await self._blocking(lambda: leftovers.look(unit, self.scope))
        except OSError:
            return None
        return None

    def _members(self, unit: UnitIdentity) -> tuple[ProcessIdentity, ...]:
        """The processes of ``unit`` now: what its guardian vouches for, or what of the record is still itself."""
        live = self._units.get(unit.generation)
        known = live.identity if live is not None else unit
        if known is None:
            return ()
        if known.guardian is not None and (found := descendants(known.guardian)):
            return found
        recorded = dict.fromkeys((*unit.members, *([unit.main] if unit.main else []), *(live.members if live else ())))
        return tuple(member for member in recorded if verdict(member) is IdentityVerdict.SAME)

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)


def _require_linux() -> None:
    """Descendants, parent-death signals and process handles are Linux's; without one of them nothing can be proven."""
    missing = f"this system is {sys.platform}"
    if sys.platform == "linux":
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError as problem:
            missing = f"process handles are refused here ({problem.strerror})"
        else:
            return
    raise error_for(
        ErrorCode.RUNTIME_UNAVAILABLE,
        f"Engines as processes need Linux 5.3 or later; {missing}.",
        remedy="Run engines in containers on this system.",
    )


def _launch(plan: UnitPlan, file: str, port: int) -> dict[str, object]:
    return {
        "scope": plan.scope,
        "generation": plan.generation,
        "boot_id": boot_id(),
        "file": file,
        "argv": [word.replace("{port}", str(port)) for word in plan.argv],
        "env": {name: value.replace("{port}", str(port)) for name, value in plan.env.items()},
        "life_dir": plan.life_dir,
        "log_path": plan.log_path,
        "secrets": list(plan.secrets),
        "orphan_grace_s": plan.orphan_grace_s,
        "kill_confirm_s": plan.kill_confirm_s,
    }


def _failed(number: int, stage: str, detail: str) -> StartFailed:
    kinds = _START_KINDS if stage == "exec" else _DISK_KINDS
    kind = kinds.get(number, "installation-broken" if stage == "exec" else "runtime-error")
    return StartFailed(kind, may_exist=False, detail=f"{os.strerror(number)}: {detail}")


def _live_state(live: LiveUnit) -> InspectAnswer:
    if live.has_ended:
        return Exited(live.exit)
    if not live.is_lost:
        return Running()
    match live.burial:
        case None:
            return Changing(GUARDIAN_LOST)
        case Confirmed():
            return Exited(None)
        case Unconfirmed(cause):
            return Running() if cause is UnconfirmedCause.SURVIVORS else Unknown(cause)
