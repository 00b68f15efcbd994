"""Admit, evict then admit, wait, or refuse: one pure decision with its reasons (M-69 to M-71, M-74).

Dry run and real run are the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker.domain.context import LaunchPlan, PlanRequest, Shortfall, plan_launch
from stoker.domain.ladder import MAX_OPTIONS, in_gib, smallest_need
from stoker.domain.residency import Resident, choose_victims, is_busy_victim, is_idle_victim
from stoker.domain.session import Phase
from stoker.errors import ErrorCode
from stoker.ids import DeploymentName, Generation, PoolId


@dataclass(frozen=True, slots=True)
class Demand:
    """What wants memory: a replica of a deployment, with what the planner needs and the age of its oldest ticket."""

    deployment: DeploymentName
    replica: int
    plan: PlanRequest
    since: float
    may_evict: bool = True


@dataclass(frozen=True, slots=True)
class World:
    """Memory as the kernel sees it in this step, in bytes per pool.

    ``reserved``: sum of all reservations. ``promised``: needs of claims that stand before this one. ``returning``:
    reservations of sessions that are already draining or stopping (not stop-unconfirmed), which will come back.
    """

    now: float
    budgets: Mapping[PoolId, int]
    reserved: Mapping[PoolId, int]
    promised: Mapping[PoolId, int] = field(default_factory=dict)
    returning: Mapping[PoolId, int] = field(default_factory=dict)
    residents: tuple[Resident, ...] = ()


@dataclass(frozen=True, slots=True)
class Admit:
    plan: LaunchPlan


@dataclass(frozen=True, slots=True)
class EvictThenAdmit:
    """``victims`` are idle and end in this step; ``earmarks`` are busy and are closed to new grants when due (R-27)."""

    plan: LaunchPlan
    victims: tuple[Generation, ...]
    earmarks: tuple[Generation, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """``on``: busy, loading, draining, stopping or stop-unconfirmed (M-69)."""

    on: str
    holders: tuple[Generation, ...]
    needed: Mapping[PoolId, int]
    headroom: Mapping[PoolId, int]


@dataclass(frozen=True, slots=True)
class Refuse:
    """``code`` is a row of the error table; the sentence carries model, need and headroom in GiB (M-71)."""

    code: ErrorCode
    message: str
    remedy: str
    pool: PoolId
    needed_bytes: int
    headroom_bytes: int
    short_bytes: int
    would_fit_if: tuple[str, ...] = ()


Verdict = Admit | EvictThenAdmit | Wait | Refuse


def decide(demand: Demand, world: World) -> Verdict:
    """M-70, over every pool the plan names: never-fits first, then now, then victims, then wait, then refuse.

    Nobody is evicted for a larger automatic window: what fits beside the others at its minimum is admitted. Nothing
    is taken from anyone unless the whole set suffices. Whether something fits is asked of the smallest plan; the plan
    that is handed out is the planner's best for the room there will be.
    """
    scene = _Scene(demand, world, _room(world), smallest_need(demand.plan))
    if not _holds(world.budgets, scene.needed):
        return _never_fits(scene)
    if _holds(scene.room, scene.needed):
        return Admit(scene.plan_in(scene.room))
    return (
        _wait_for_returning(scene)
        or _evict_idle(scene)
        or _evict_abandoned(scene)
        or _earmark_busy(scene)
        or _blocked_by_pins(scene)
        or _wait_for_others(scene)
    )


_LOADING = frozenset({Phase.RESERVED, Phase.PREPARING, Phase.STARTING, Phase.INITIALIZING})
_ENDING = frozenset({Phase.DRAINING, Phase.STOPPING})
_UNCONFIRMED = frozenset({Phase.STOP_UNCONFIRMED})
_STAYING = _LOADING | {Phase.READY}


@dataclass(frozen=True, slots=True)
class _Scene:
    """One decision under way: what is asked, the room now, and what the smallest plan needs."""

    demand: Demand
    world: World
    room: Mapping[PoolId, int]
    needed: Mapping[PoolId, int]

    @property
    def shortage(self) -> dict[PoolId, int]:
        return _minus(self.needed, self.room)

    def fits_after(self, leaving: Iterable[Resident]) -> bool:
        return _holds(_plus(self.room, _sum(leaving)), self.needed)

    def plan_in(self, room: Mapping[PoolId, int]) -> LaunchPlan:
        plan = plan_launch(self.demand.plan, room)
        assert isinstance(plan, LaunchPlan), "the smallest plan fits, so the ladder ends in one"
        return plan

    def plan_after(self, leaving: Iterable[Resident]) -> LaunchPlan:
        return self.plan_in(_plus(self.room, _sum(leaving)))

    def of(self, phases: frozenset[Phase]) -> tuple[Resident, ...]:
        """Residents in these phases that hold something of a pool that is short."""
        short = [pool for pool, amount in self.shortage.items() if amount > 0]
        return tuple(
            r for r in self.world.residents if r.phase in phases and any(r.reservation.get(pool, 0) for pool in short)
        )

    def wait(self, on: str, holders: Iterable[Resident]) -> Wait:
        return Wait(on, tuple(r.generation for r in holders), dict(self.needed), dict(self.room))


def _wait_for_returning(scene: _Scene) -> Verdict | None:
    """What is already draining or stopping will do: nobody else has to go."""
    if not scene.world.returning or not _holds(_plus(scene.room, scene.world.returning), scene.needed):
        return None
    holders = scene.of(_ENDING)
    is_draining = any(r.phase is Phase.DRAINING for r in holders)
    return scene.wait("draining" if is_draining else "stopping", holders)


def _evict_idle(scene: _Scene) -> Verdict | None:
    return _evict(scene, tuple(filter(is_idle_victim, scene.world.residents)))


def _evict_abandoned(scene: _Scene) -> Verdict | None:
    """S-16: a load that nobody waits for any more gives way to a ticket that cannot start without its memory."""
    loads = tuple(r for r in scene.of(_LOADING) if r.abandoned_load and not r.pinned)
    return _evict(scene, (*filter(is_idle_victim, scene.world.residents), *loads)) if loads else None


def _evict(scene: _Scene, candidates: tuple[Resident, ...]) -> Verdict | None:
    if not scene.demand.may_evict:
        return None
    victims = choose_victims(candidates, scene.shortage)
    if not victims:
        return None
    return EvictThenAdmit(scene.plan_after(victims), tuple(r.generation for r in victims))


def _earmark_busy(scene: _Scene) -> Verdict | None:
    """M-85: the fewest busy ones that suffice beside all idle ones, then only the idle ones still needed."""
    if not scene.demand.may_evict:
        return None
    idle = tuple(filter(is_idle_victim, scene.world.residents))
    busy = tuple(r for r in scene.world.residents if is_busy_victim(r) and not is_idle_victim(r))
    earmarks = choose_victims(busy, _minus(scene.shortage, _sum(idle)))
    if not earmarks:
        return None
    victims = choose_victims(idle, _minus(scene.shortage, _sum(earmarks))) or ()
    plan = scene.plan_after((*victims, *earmarks))
    return EvictThenAdmit(plan, tuple(r.generation for r in victims), tuple(r.generation for r in earmarks))


def _blocked_by_pins(scene: _Scene) -> Verdict | None:
    """R-31: even with everything else gone, the pinned sessions leave too little."""
    pinned = tuple(r for r in scene.of(_STAYING) if r.pinned)
    left = _minus(scene.world.budgets, _sum(pinned))
    plan = None if _holds(left, scene.needed) else plan_launch(scene.demand.plan, left)
    if not isinstance(plan, Shortfall):
        return None
    names = ", ".join(sorted({r.deployment for r in pinned}))
    return _refuse(
        scene.demand.deployment,
        ErrorCode.BLOCKED_BY_PIN,
        plan,
        where=f"beside the pinned {names}, which keep theirs",
        remedy=f"Unpin {names}, or {_either(plan.would_fit_if)}." if plan.would_fit_if else f"Unpin {names}.",
        options=(f"unpin {names}", *plan.would_fit_if),
    )


def _wait_for_others(scene: _Scene) -> Verdict:
    """Blocked by something that will end; without leave to evict, a resident that stays is a refusal for now."""
    loading = tuple(r for r in scene.of(_LOADING) if not r.pinned)
    ending = scene.of(_ENDING)
    unconfirmed = scene.of(_UNCONFIRMED)
    ready = tuple(filter(is_busy_victim, scene.world.residents)) if scene.demand.may_evict else ()
    gone: list[Resident] = [*ready]
    for on, holders in (("stopping", ending), ("loading", loading), ("stop-unconfirmed", unconfirmed)):
        gone += holders
        if holders and scene.fits_after(gone):
            return scene.wait(on, holders)
    if scene.demand.may_evict or scene.world.promised:
        return scene.wait("busy", (*ready, *ending, *loading, *unconfirmed))
    return _refuse(
        scene.demand.deployment,
        ErrorCode.MEMORY_BUSY,
        _shortfall(scene, scene.room),
        where="beside those that it may not push out",
        remedy="Unload another model, or wait until one is idle.",
    )


def _never_fits(scene: _Scene) -> Refuse:
    short = _shortfall(scene, scene.world.budgets)
    remedy = f"What would fit: {_either(short.would_fit_if)}." if short.would_fit_if else "Use a smaller model."
    return _refuse(scene.demand.deployment, ErrorCode.NEVER_FITS, short, where="for all models together", remedy=remedy)


def _shortfall(scene: _Scene, room: Mapping[PoolId, int]) -> Shortfall:
    plan = plan_launch(scene.demand.plan, room)
    assert isinstance(plan, Shortfall), "the smallest plan does not fit, so no other does"
    return plan


def _refuse(
    name: str, code: ErrorCode, short: Shortfall, *, where: str, remedy: str, options: tuple[str, ...] = ()
) -> Refuse:
    """One sentence with model, need and what there is, in GiB (M-71)."""
    there = in_gib(max(0, short.room_bytes))
    return Refuse(
        code=code,
        message=f"{name} needs {in_gib(short.needed_bytes)} of {short.pool}; there is {there} {where}.",
        remedy=remedy,
        pool=short.pool,
        needed_bytes=short.needed_bytes,
        headroom_bytes=short.room_bytes,
        short_bytes=short.needed_bytes - short.room_bytes,
        would_fit_if=(options or short.would_fit_if)[:MAX_OPTIONS],
    )


def _holds(room: Mapping[PoolId, int], needed: Mapping[PoolId, int]) -> bool:
    return all(amount <= room.get(pool, 0) for pool, amount in needed.items())


def _either(options: tuple[str, ...]) -> str:
    return " or ".join(options)


def _room(world: World) -> dict[PoolId, int]:
    """M-56: budget minus what is reserved and what is promised to claims ahead; negative while overdrawn."""
    return _minus(_minus(world.budgets, world.reserved), world.promised)


def _sum(residents: Iterable[Resident]) -> dict[PoolId, int]:
    total: dict[PoolId, int] = {}
    for resident in residents:
        total = _plus(total, resident.reservation)
    return total


def _plus(left: Mapping[PoolId, int], right: Mapping[PoolId, int]) -> dict[PoolId, int]:
    return {pool: left.get(pool, 0) + right.get(pool, 0) for pool in (*left, *right)}


def _minus(left: Mapping[PoolId, int], right: Mapping[PoolId, int]) -> dict[PoolId, int]:
    """Over the pools of ``left``."""
    return {pool: amount - right.get(pool, 0) for pool, amount in left.items()}
