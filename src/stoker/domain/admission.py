"""Admit, evict then admit, wait, or refuse: one pure decision with its reasons (M-69 to M-71, M-74).

Dry run and real run are the same call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.domain.context import LaunchPlan, PlanRequest
from stoker.domain.residency import Resident
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
    """M-70, over every pool the plan names: never-fits first, then now, then victims, then wait, then refuse."""
    raise NotImplementedError
