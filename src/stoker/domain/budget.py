"""The ledger: reservations over pools, each granted whole or not at all and released exactly once (M-72, M-73)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.ids import Generation, PoolId


@dataclass(frozen=True, slots=True)
class Ledger:
    """Budgets and reservations, in bytes. Replaced whole by each change.

    L-1: a reservation is granted only if on every pool it names the sum stays within budget. L-3: overdraft arises
    only from a lowered budget or a measured correction, is shown, and blocks grants.
    """

    budgets: Mapping[PoolId, int]
    reservations: Mapping[Generation, Mapping[PoolId, int]] = field(default_factory=dict)

    def reserved(self, pool: PoolId) -> int:
        raise NotImplementedError

    def headroom(self, pool: PoolId) -> int:
        """Budget minus reservations; negative while overdrawn."""
        raise NotImplementedError

    def overdraft(self, pool: PoolId) -> int:
        raise NotImplementedError

    def reserve(self, generation: Generation, amounts: Mapping[PoolId, int]) -> Ledger | Short:
        """Grant all of ``amounts`` or nothing. An unknown pool is short of everything; twice is a defect."""
        raise NotImplementedError

    def adopt(self, generation: Generation, amounts: Mapping[PoolId, int]) -> Ledger:
        """Put a leftover's recorded reservation on the books, even beyond the budget (S-90, S-94)."""
        raise NotImplementedError

    def release(self, generation: Generation) -> tuple[Ledger, Mapping[PoolId, int]]:
        """Take one reservation off; raises `KeyError` if it is not there: releasing twice is a defect."""
        raise NotImplementedError

    def correct(self, generation: Generation, amounts: Mapping[PoolId, int]) -> Ledger:
        """Replace a reservation by what was measured; growth applies at once (M-75)."""
        raise NotImplementedError

    def with_budget(self, pool: PoolId, budget_bytes: int) -> Ledger:
        """Set one budget live; never evicts (M-33)."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Short:
    """The first pool that cannot hold an amount, with both numbers."""

    pool: PoolId
    needed_bytes: int
    headroom_bytes: int


def auto_budget_ram(total_bytes: int) -> int:
    """M-29, system RAM."""
    raise NotImplementedError


def os_floor_ram(total_bytes: int) -> int:
    """M-30, bytes of system RAM that must stay free, live."""
    raise NotImplementedError
