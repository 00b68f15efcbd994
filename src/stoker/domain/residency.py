"""Who holds memory, and who may go (M-81 to M-85, R-26 to R-28)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.domain.session import Phase
from stoker.ids import DeploymentName, Generation, PoolId


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
    raise NotImplementedError


def is_busy_victim(resident: Resident) -> bool:
    """May this session be named for an earmark (M-85)? Ready and unpinned, though busy, queued for or owing."""
    raise NotImplementedError


def choose_victims(
    candidates: tuple[Resident, ...], shortage: Mapping[PoolId, int]
) -> tuple[Resident, ...] | None:
    """The cheapest set whose release covers ``shortage`` on every pool (M-83); None if there is none.

    Order: least demand, then least reload cost, then fewest, then longest idle, then generation. At most 12
    candidates exhaustively, else greedy with removal of redundant members.
    """
    raise NotImplementedError


def earmark_at(
    *, since: float, victim: Resident, swap_s: float, bound_s: float = 15.0, bound_factor: float = 4.0
) -> float:
    """When a busy victim stops being granted (R-27). ``since``: arrival of the contender's oldest ticket."""
    raise NotImplementedError
