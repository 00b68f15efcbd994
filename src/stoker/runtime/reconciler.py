"""What an earlier run left behind, met at the start and proven gone (S-90 to S-95).

Every open row enters the kernel as a resident with its recorded reservation before anything is admitted; then each is
looked at and acted on through the one teardown. One bad record stops neither the others nor the start.
"""

from __future__ import annotations

import anyio

from stoker.domain.reconcile import Action, Finding, judge
from stoker.domain.session import Phase
from stoker.ids import Generation
from stoker.ports.journal import Journal, OpenLife
from stoker.ports.units import Confirmed, Kept, UnitIdentity, Units
from stoker.runtime.effects import Carrier
from stoker.runtime.inputs import HoldsRead, LeftoverFound, LeftoverJudged
from stoker.runtime.launching import Life

_AT_ONCE = 8
_CALL_S, _ALL_S = 5.0, 20.0
_SETTLED_POLL_S = 0.02


class Reconciler:
    def __init__(self, carrier: Carrier, journal: Journal, units: Units, folders: Life) -> None:
        self._kernel, self._journal, self._units = carrier.kernel, journal, units
        self._post, self._until = carrier.post, carrier.until
        self._folders = folders
        self.counts = {"adopted": 0, "reaped": 0, "forgotten": 0, "reported": 0}

    async def run(self, wall: float) -> None:
        """Steps 2 to 4 of S-90, within 20 s and one call; what was not reached stays a leftover for later."""
        self._post(HoldsRead(await self._journal.holds(), wall))
        lives = await self._journal.open_lives()
        for life in lives:
            self._post(LeftoverFound(life))
        limiter = anyio.CapacityLimiter(_AT_ONCE)
        with anyio.move_on_after(_ALL_S):
            async with anyio.create_task_group() as tasks:
                for life in lives:
                    tasks.start_soon(self._settle, life, wall, limiter)
        with anyio.move_on_after(_CALL_S):
            await self._retry_residues()
            await self._sweep()

    async def _settle(self, life: OpenLife, wall: float, limiter: anyio.CapacityLimiter) -> None:
        async with limiter:
            began, looked_again = anyio.current_time(), 0
            while True:
                finding = await self._look(life, wall + anyio.current_time() - began, looked_again)
                verdict = judge(finding)
                if verdict.action is not Action.WAIT:  # its guardian is no longer at work (R2)
                    break
                looked_again += 1
                await anyio.sleep(_SETTLED_POLL_S)
            generation = life.session.generation
            word = {Action.REAP: "reaped", Action.FORGET: "forgotten", Action.ADOPT: "adopted"}
            self.counts[word.get(verdict.action, "reported")] += 1
            self._post(LeftoverJudged(generation, verdict.rule, str(verdict.action), _found(finding)))
            if verdict.action in {Action.REAP, Action.FORGET}:
                await self._gone(generation)

    async def _look(self, life: OpenLife, wall: float, looked_again: int) -> Finding:
        row = life.session
        unit = life.unit or await self._units.recover(row.generation, row.life_dir)
        unit = unit or UnitIdentity(row.generation, row.unit_kind, life_dir=row.life_dir)
        starts = [act.intended_at for act in life.acts if act.verb == "start"]
        age_s = wall - max(starts) if starts else None
        finding: Finding | None = None
        with anyio.move_on_after(_CALL_S):
            finding = await self._units.inspect_leftover(unit, intent_age_s=age_s, looked_again=looked_again)
        return finding or Finding(row.unit_kind, runtime_reachable=False, container_state="unknown")

    async def _gone(self, generation: Generation) -> None:
        """Wait until the life is gone, or its stop was not confirmed and goes on in the background."""

        def is_over() -> bool:
            session = self._kernel.state.sessions.get(generation)
            return session is None or (session.phase is Phase.STOP_UNCONFIRMED and session.state.stop_attempts > 0)

        await self._until(is_over)

    async def _retry_residues(self) -> None:
        for residue in await self._journal.residues():
            identity = UnitIdentity(residue.generation, self._units.kind, life_dir=residue.path)
            if not isinstance(await self._units.remove(identity), Kept):
                await self._journal.clear_residue(residue.generation)

    async def _sweep(self) -> None:
        """Life directories without a row: their life is confirmed gone (K16, K17), or the journal was lost (S-87).

        What a directory's own record proves ours is ended first; only then does the directory go.
        """
        known = set(self._kernel.state.sessions)
        for name in self._folders.list_folders(self._folders.lives):
            if not name.isdecimal() or Generation(int(name)) in known:
                continue
            generation = Generation(int(name))
            folder = self._folders.life_dir(generation)
            unit = await self._units.recover(generation, folder)
            unit = unit or UnitIdentity(generation, self._units.kind, life_dir=folder)
            if isinstance(await self._units.remove(unit), Kept) and isinstance(
                await self._units.stop(unit, 0.0), Confirmed
            ):
                await self._units.remove(unit)


def _found(finding: Finding) -> str:
    members = ", ".join(str(member) for member in finding.members) or "no member"
    return f"guardian {finding.guardian or 'unknown'}, {members}"
