"""Who holds memory, and who may go (M-81 to M-85, R-26 to R-28)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import fsum, inf

from stoker.domain.session import Phase
from stoker.ids import DeploymentName, Generation, PoolId

EXHAUSTIVE = 12  # candidates up to which every set is weighed; 4,096 sets at most


@dataclass(frozen=True, slots=True)
class Resident:
    """One session that holds memory, as eviction sees it.

    ``in_flight``: grants and light requests not yet ended. ``waiting``: tickets queued for its deployment that it
    could serve. ``owed``: tickets it was loaded for and has not granted yet (R-28). ``demand_60s``: grants in the last
    minute. ``reload_s``: measured or estimated load time. ``abandoned_load``: loading with no caller left (S-16).
    """

    generation: Generation
    deployment: DeploymentName
    replica: int
    phase: Phase
    reservation: Mapping[PoolId, int]
    pinned: bool = False
    in_flight: int = 0
    waiting: int = 0
    owed: int = 0
    last_used_at: float = 0.0
    ready_at: float | None = None
    demand_60s: int = 0
    reload_s: float = 5.0
    earmarked: bool = False
    abandoned_load: bool = False
    mean_service_s: float = 1.0


def is_idle_victim(resident: Resident) -> bool:
    """May this session be ended in this very step (M-82)? Ready, idle, unpinned, nothing owed or queued for it."""
    return is_busy_victim(resident) and not (resident.in_flight or resident.waiting or resident.owed)


def is_busy_victim(resident: Resident) -> bool:
    """May this session be named for an earmark (M-85)? Ready and unpinned, though busy, queued for or owing."""
    return resident.phase is Phase.READY and not resident.pinned


def choose_victims(candidates: tuple[Resident, ...], shortage: Mapping[PoolId, int]) -> tuple[Resident, ...] | None:
    """The cheapest set whose release covers ``shortage`` on every pool (M-83); None if there is none.

    Order: least demand, then least reload cost, then fewest, then longest idle, then generation. At most 12
    candidates exhaustively, else greedy with removal of redundant members. Nothing short: the empty set.
    """
    short = {pool: amount for pool, amount in shortage.items() if amount > 0}
    useful = tuple(c for c in candidates if any(c.reservation.get(pool, 0) > 0 for pool in short))
    if not _covers(useful, short):
        return None
    if len(useful) > EXHAUSTIVE:
        return _greedy(useful, short)
    sets = (group for size in range(len(useful) + 1) for group in combinations(useful, size))
    chosen = min((group for group in sets if _covers(group, short)), key=_cost)
    return tuple(sorted(chosen, key=_alone))


def _covers(group: tuple[Resident, ...], short: Mapping[PoolId, int]) -> bool:
    return all(sum(r.reservation.get(pool, 0) for r in group) >= amount for pool, amount in short.items())


def _cost(group: tuple[Resident, ...]) -> tuple[int, float, int, tuple[float, ...], tuple[int, ...]]:
    """M-83 as one comparable value; sums are exact, so that the order in which members are named changes nothing."""
    return (
        sum(r.demand_60s for r in group),
        fsum(r.reload_s for r in group),
        len(group),
        tuple(sorted(r.last_used_at for r in group)),
        tuple(sorted(r.generation for r in group)),
    )


def _alone(resident: Resident) -> tuple[int, float, float, int]:
    return (resident.demand_60s, resident.reload_s, resident.last_used_at, resident.generation)


def _greedy(useful: tuple[Resident, ...], short: Mapping[PoolId, int]) -> tuple[Resident, ...]:
    """Cheapest first until covered; then the dearest members that the rest covers for are taken out again."""
    chosen: list[Resident] = []
    for resident in sorted(useful, key=_alone):
        if _covers(tuple(chosen), short):
            break
        chosen.append(resident)
    for resident in sorted(chosen, key=_alone, reverse=True):
        rest = tuple(r for r in chosen if r is not resident)
        if _covers(rest, short):
            chosen = list(rest)
    return tuple(chosen)


def earmark_at(
    *, since: float, victim: Resident, swap_s: float, bound_s: float = 15.0, bound_factor: float = 4.0
) -> float:
    """When a busy victim stops being granted (R-27). ``since``: arrival of the contender's oldest ticket.

    max(ready_at + 2S, since + max(0, W - S - m)) with W = max(bound_s, bound_factor * S), S the expected stop and
    load time of the swap, m the victim's mean service time. The tickets it was loaded for are its caller's to check
    (R-28): ``owed`` is a count, not a time.
    """
    bound = max(bound_s, bound_factor * swap_s)
    asked = since + max(0.0, bound - swap_s - victim.mean_service_s)
    settled = -inf if victim.ready_at is None else victim.ready_at + 2 * swap_s
    return max(settled, asked)
