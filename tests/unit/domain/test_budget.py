"""The ledger grants whole or not at all, releases once, and never grants past a budget (M-29, M-30, M-72)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stoker.domain.budget import GIB, Ledger, Short, auto_budget_ram, os_floor_ram
from stoker.ids import RAM, Generation, PoolId

CARD = PoolId("card/GPU-1")
POOLS = (RAM, CARD)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (2, 1), (4, 2), (8, 4.8), (16, 9.6), (24, 14.4), (32, 19.2), (36, 21.6), (48, 28.8), (64, 40), (96, 72),
        (128, 104), (192, 168), (512, 488),
    ],
)  # fmt: skip
def test_v8_budget_of_system_memory(total: int, expected: float) -> None:
    assert auto_budget_ram(total * GIB) == int(expected * GIB)


def test_v9_budget_of_sixteen_gib_exactly() -> None:
    assert auto_budget_ram(16 * GIB) == 10_307_921_510


@pytest.mark.parametrize(("total", "expected"), [(2, 0.5), (4, 1), (8, 2), (16, 2), (32, 3.2), (64, 4)])
def test_v10_floor_of_the_operating_system(total: int, expected: float) -> None:
    assert os_floor_ram(total * GIB) == int(expected * GIB)


@given(st.integers(1 << 20, 2 << 40), st.integers(0, 1 << 30))
def test_budget_curve_never_falls_and_never_jumps(total: int, more: int) -> None:
    low, high = auto_budget_ram(total), auto_budget_ram(total + more)
    assert 0 <= low <= high <= low + more + 1
    assert low <= total


def test_a_reservation_is_granted_on_every_pool_or_on_none() -> None:
    ledger = Ledger({RAM: 10, CARD: 5})
    got = ledger.reserve(Generation(1), {RAM: 10, CARD: 6})
    assert got == Short(CARD, 6, 5)
    assert ledger.reserved(RAM) == 0


def test_an_unknown_pool_holds_nothing() -> None:
    assert Ledger({RAM: 10}).reserve(Generation(1), {CARD: 1}) == Short(CARD, 1, 0)


def test_reserving_or_releasing_twice_is_a_defect() -> None:
    ledger = Ledger({RAM: 10}).reserve(Generation(1), {RAM: 4})
    assert isinstance(ledger, Ledger)
    with pytest.raises(ValueError, match="already holds"):
        ledger.reserve(Generation(1), {RAM: 1})
    with pytest.raises(ValueError, match="already holds"):
        ledger.adopt(Generation(1), {RAM: 1})
    emptied, freed = ledger.release(Generation(1))
    assert freed == {RAM: 4}
    assert emptied.headroom(RAM) == 10
    with pytest.raises(KeyError):
        emptied.release(Generation(1))
    with pytest.raises(KeyError):
        emptied.correct(Generation(1), {RAM: 1})


def test_negative_amounts_and_budgets_are_defects() -> None:
    ledger = Ledger({RAM: 10})
    with pytest.raises(ValueError, match="negative"):
        ledger.reserve(Generation(1), {RAM: -1})
    with pytest.raises(ValueError, match="negative"):
        ledger.with_budget(RAM, -1)


def test_a_lowered_budget_evicts_nothing_shows_its_overdraft_and_blocks_grants() -> None:
    ledger = Ledger({RAM: 10}).adopt(Generation(1), {RAM: 8}).with_budget(RAM, 6)
    assert ledger.reserved(RAM) == 8
    assert (ledger.overdraft(RAM), ledger.headroom(RAM)) == (2, -2)
    assert ledger.reserve(Generation(2), {RAM: 1}) == Short(RAM, 1, -2)


def test_a_leftover_is_put_on_the_books_even_beyond_the_budget() -> None:
    assert Ledger({RAM: 10}).adopt(Generation(1), {RAM: 12}).overdraft(RAM) == 2


def test_measured_growth_applies_at_once() -> None:
    ledger = Ledger({RAM: 10}).adopt(Generation(1), {RAM: 4}).correct(Generation(1), {RAM: 11})
    assert ledger.overdraft(RAM) == 1


class LedgerMachine(RuleBasedStateMachine):
    """Any order of grants, corrections, releases and budget changes against a plain model of the books."""

    @initialize(ram=st.integers(0, 100), card=st.integers(0, 100))
    def open(self, ram: int, card: int) -> None:
        self.ledger = Ledger({RAM: ram, CARD: card})
        self.model: dict[Generation, Mapping[PoolId, int]] = {}
        self.next = 1

    @rule(ram=st.integers(0, 60), card=st.integers(0, 60))
    def reserve(self, ram: int, card: int) -> None:
        generation, amounts = Generation(self.next), {RAM: ram, CARD: card}
        self.next += 1
        before = {pool: self.ledger.headroom(pool) for pool in POOLS}
        got = self.ledger.reserve(generation, amounts)
        if isinstance(got, Short):
            assert got.needed_bytes > got.headroom_bytes == before[got.pool]
            return
        assert all(amounts[pool] == 0 or got.headroom(pool) >= 0 for pool in POOLS)
        self.ledger, self.model[generation] = got, amounts

    @rule(data=st.data(), ram=st.integers(0, 80))
    def correct(self, data: st.DataObject, ram: int) -> None:
        if self.model:
            generation = data.draw(st.sampled_from(sorted(self.model)))
            self.ledger = self.ledger.correct(generation, {RAM: ram})
            self.model[generation] = {RAM: ram}

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.model:
            generation = data.draw(st.sampled_from(sorted(self.model)))
            self.ledger, freed = self.ledger.release(generation)
            assert freed == self.model.pop(generation)

    @rule(pool=st.sampled_from(POOLS), budget=st.integers(0, 100))
    def change_budget(self, pool: PoolId, budget: int) -> None:
        self.ledger = self.ledger.with_budget(pool, budget)

    @invariant()
    def books_agree(self) -> None:
        for pool in POOLS:
            total = sum(amounts.get(pool, 0) for amounts in self.model.values())
            assert self.ledger.reserved(pool) == total
            assert self.ledger.overdraft(pool) == max(0, total - self.ledger.budgets[pool])


TestLedgerMachine = LedgerMachine.TestCase
