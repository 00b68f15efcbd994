"""The ledger: reservations over pools, each granted whole or not at all and released exactly once (M-72, M-73)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stoker.ids import Generation, PoolId

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Ledger:
    """Budgets and reservations, in bytes. Replaced whole by each change.

    L-1: a reservation is granted only if on every pool it names the sum stays within budget. L-3: overdraft arises
    only from a lowered budget or a measured correction, is shown, and blocks grants.
    """

    budgets: Mapping[PoolId, int]
    reservations: Mapping[Generation, Mapping[PoolId, int]] = field(default_factory=dict)

    def reserved(self, pool: PoolId) -> int:
        return sum(amounts.get(pool, 0) for amounts in self.reservations.values())

    def headroom(self, pool: PoolId) -> int:
        """Budget minus reservations; negative while overdrawn. A pool without a budget has none."""
        return self.budgets.get(pool, 0) - self.reserved(pool)

    def overdraft(self, pool: PoolId) -> int:
        return max(0, -self.headroom(pool))

    def reserve(self, generation: Generation, amounts: Mapping[PoolId, int]) -> Ledger | Short:
        """Grant all of ``amounts`` or nothing. An unknown pool is short of everything; twice is a defect.

        A pool of which nothing is asked does not take part. A pool without a budget holds nothing, and an overdrawn
        one grants nothing (L-1, L-3). Raises `ValueError` for a second reservation of one generation (L-2) and for a
        negative amount.
        """
        if generation in self.reservations:
            raise ValueError(f"generation {generation} already holds a reservation")
        _check(amounts)
        for pool, needed in amounts.items():
            headroom = self.headroom(pool)
            if needed > 0 and needed > headroom:
                return Short(pool, needed, headroom)
        return self._with(generation, amounts)

    def adopt(self, generation: Generation, amounts: Mapping[PoolId, int]) -> Ledger:
        """Put a leftover's recorded reservation on the books, even beyond the budget (S-90, S-94)."""
        if generation in self.reservations:
            raise ValueError(f"generation {generation} already holds a reservation")
        _check(amounts)
        return self._with(generation, amounts)

    def release(self, generation: Generation) -> tuple[Ledger, Mapping[PoolId, int]]:
        """Take one reservation off; raises `KeyError` if it is not there: releasing twice is a defect."""
        left = dict(self.reservations)
        freed = left.pop(generation)
        return replace(self, reservations=left), freed

    def correct(self, generation: Generation, amounts: Mapping[PoolId, int]) -> Ledger:
        """Replace a reservation by what was measured; growth applies at once (M-75). `KeyError` if there is none."""
        if generation not in self.reservations:
            raise KeyError(generation)
        _check(amounts)
        return self._with(generation, amounts)

    def with_budget(self, pool: PoolId, budget_bytes: int) -> Ledger:
        """Set one budget live; never evicts (M-33)."""
        if budget_bytes < 0:
            raise ValueError(f"budget of {pool} would be negative: {budget_bytes}")
        return replace(self, budgets={**self.budgets, pool: budget_bytes})

    def _with(self, generation: Generation, amounts: Mapping[PoolId, int]) -> Ledger:
        return replace(self, reservations={**self.reservations, generation: dict(amounts)})


def _check(amounts: Mapping[PoolId, int]) -> None:
    for pool, amount in amounts.items():
        if amount < 0:
            raise ValueError(f"reservation of {amount} bytes on {pool} is negative")


@dataclass(frozen=True, slots=True)
class Short:
    """The first pool that cannot hold an amount, with both numbers."""

    pool: PoolId
    needed_bytes: int
    headroom_bytes: int


def auto_budget_ram(total_bytes: int) -> int:
    """What all reservations on system RAM may sum to, by default (M-29).

    max(0, min(max(⌊3R/5⌋, R - 24 GiB), R - min(2 GiB, ⌊R/2⌋))): continuous and non-decreasing in R.
    """
    share = max(3 * total_bytes // 5, total_bytes - 24 * GIB)
    for_the_system = min(2 * GIB, total_bytes // 2)
    return max(0, min(share, total_bytes - for_the_system))


def os_floor_ram(total_bytes: int) -> int:
    """Bytes of system RAM that must stay free, live (M-30): a tenth, 2 GiB (or a quarter) at least, 4 GiB at most."""
    return min(max(total_bytes // 10, min(2 * GIB, total_bytes // 4)), 4 * GIB)
