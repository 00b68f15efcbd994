"""What an earlier run, or a lost guardian, left: looked at, and ended by identity alone (S-39, S-42, S-43, S-91).

Ours is what was recorded (`unit.json`, the journal), what lives under a guardian that is still `same`, and what carries
the marker of a generation whose row is open: the caller vouches for the row. Only `same` is signalled; `unreadable`
counts as alive. A guardian is never killed before those it guards, because it alone inherits their orphans.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import anyio

from stoker.domain.reconcile import Finding, IdentityVerdict
from stoker.hosts.process import life
from stoker.hosts.process.procfs import (
    boot_id,
    descendants,
    marked,
    reap_exactly,
    signal_exactly,
    survivor,
    verdict,
)
from stoker.ids import Scope
from stoker.ports.units import (
    Confirmed,
    ProcessIdentity,
    StopAnswer,
    Survivor,
    Unconfirmed,
    UnconfirmedCause,
    UnitIdentity,
)

ORPHAN_WORK_S = 5.0
HELPER_GRACE_S = 2.0
PASS_S, LOOK_S = 0.02, 0.05
_EMPTY_LOOKS = 2

SAME, UNREADABLE = IdentityVerdict.SAME, IdentityVerdict.UNREADABLE


@dataclass(frozen=True, slots=True)
class Remains:
    """One look at a life: its guardian and every process that is known to be of it, each with its verdict."""

    guardian: ProcessIdentity | None
    guardian_verdict: IdentityVerdict | None
    members: dict[ProcessIdentity, IdentityVerdict]
    same_boot: bool
    has_identity: bool

    def which(self, wanted: IdentityVerdict) -> list[ProcessIdentity]:
        return [member for member, found in self.members.items() if found is wanted]

    @property
    def is_empty(self) -> bool:
        """Nothing alive and nothing in doubt."""
        found = [*self.members.values(), self.guardian_verdict]
        return SAME not in found and UNREADABLE not in found


def look(unit: UnitIdentity, scope: Scope, known: frozenset[ProcessIdentity] = frozenset()) -> Remains:
    """Verdicts on everything recorded, guarded, marked or ``known``. Blocking."""
    record = life.read_record(unit.life_dir) if unit.life_dir else None
    if record is not None and (record.generation != unit.generation or record.scope != scope):
        record = None
    guardian = unit.guardian or (record.guardian if record else None)
    recorded = {*unit.members, unit.main, record.main if record else None} - {None}
    members = {one for one in recorded if one is not None} | known
    if guardian is not None:
        members.update(descendants(guardian))
    members.update(one for one, generation in marked(scope) if generation == unit.generation)
    everyone = [*members, *([guardian] if guardian else [])]
    return Remains(
        guardian=guardian,
        guardian_verdict=verdict(guardian) if guardian else None,
        members={one: verdict(one) for one in members if one.pid != os.getpid()},
        same_boot=not everyone or any(one.boot_id == boot_id() for one in everyone),
        has_identity=bool(everyone),
    )


def finding(remains: Remains, intent_age_s: float | None, looked_again: int) -> Finding:
    """The look, in the words of `reconcile.judge`."""
    return Finding(
        kind="process",
        same_boot=remains.same_boot,
        guardian=remains.guardian_verdict,
        members=tuple(remains.members.values()),
        has_identity=remains.has_identity,
        intent_age_s=intent_age_s,
        looked_again=looked_again,
    )


class Burial:
    """Ends one life whose guardian is gone or does not answer to us."""

    def __init__(self, unit: UnitIdentity, scope: Scope, limiter: anyio.CapacityLimiter, confirm_s: float) -> None:
        self._unit = unit
        self._scope = scope
        self._limiter = limiter
        self._confirm_s = confirm_s
        self._known: frozenset[ProcessIdentity] = frozenset()

    async def run(self, grace_s: float) -> StopAnswer:
        try:
            return await self._end(grace_s)
        except OSError as problem:  # ``/proc`` itself does not answer, as with no descriptor left
            return Unconfirmed(UnconfirmedCause.UNKNOWN_STATE, f"the processes cannot be looked at: {problem}")

    async def _end(self, grace_s: float) -> StopAnswer:
        remains = await self._look()
        remains = await self._let_guardian_finish(remains, min(ORPHAN_WORK_S, grace_s))
        if remains.which(SAME) and grace_s > 0:
            remains = await self._ask(remains, min(HELPER_GRACE_S, grace_s))
        remains = await self._force(remains)
        return _answer(remains)

    async def _look(self) -> Remains:
        remains = await anyio.to_thread.run_sync(look, self._unit, self._scope, self._known, limiter=self._limiter)
        self._known = frozenset(remains.members)
        return remains

    async def _let_guardian_finish(self, remains: Remains, bound_s: float) -> Remains:
        """R2: a guardian whose daemon is gone is already at its orphan work, and better at it than we are."""
        until = anyio.current_time() + bound_s
        while remains.guardian_verdict is SAME and anyio.current_time() < until:
            await anyio.sleep(LOOK_S)
            remains = await self._look()
        return remains

    async def _ask(self, remains: Remains, bound_s: float) -> Remains:
        for member in remains.which(SAME):
            signal_exactly(member, signal.SIGTERM)
        until = anyio.current_time() + bound_s
        while remains.which(SAME) and anyio.current_time() < until:
            await anyio.sleep(LOOK_S)
            remains = await self._look()
            self._collect(remains)
        return remains

    async def _force(self, remains: Remains) -> Remains:
        """KILL in passes. One empty look is a moment, so the end is two of them in a row."""
        until = anyio.current_time() + self._confirm_s
        empty_looks = int(remains.is_empty)
        while empty_looks < _EMPTY_LOOKS and anyio.current_time() < until:
            living = remains.which(SAME)
            if not living and remains.guardian is not None and remains.guardian_verdict is SAME:
                living = [remains.guardian]
            for one in living:
                signal_exactly(one, signal.SIGKILL)
            await anyio.sleep(PASS_S)
            self._collect(remains)
            remains = await self._look()
            empty_looks = empty_looks + 1 if remains.is_empty else 0
        self._collect(remains)
        return remains

    def _collect(self, remains: Remains) -> None:
        for member in remains.members:
            reap_exactly(member)


def _answer(remains: Remains) -> StopAnswer:
    if remains.is_empty:
        return Confirmed(how="absent", exit=None, by="absent")
    living = [*remains.which(SAME)]
    if remains.guardian is not None and remains.guardian_verdict is SAME:
        living.append(remains.guardian)
    survivors = tuple(found for found in map(survivor, living) if found is not None)
    if survivors:
        names = ", ".join(f"{one.pid} ({one.name}, {one.state})" for one in survivors)
        return Unconfirmed(UnconfirmedCause.SURVIVORS, f"still alive after KILL: {names}", survivors)
    doubtful = ", ".join(str(one.pid) for one in remains.which(UNREADABLE)) or "its guardian"
    unread = tuple(Survivor(one.pid, "", "unreadable") for one in remains.which(UNREADABLE))
    return Unconfirmed(UnconfirmedCause.IDENTITY_UNREADABLE, f"cannot be identified: {doubtful}", unread)
