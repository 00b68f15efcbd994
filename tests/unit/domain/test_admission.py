"""Admit, evict then admit, wait or refuse: total, true and never at the expense of live work (M-69 to M-71, M-74)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.domain.admission import Admit, Demand, EvictThenAdmit, Refuse, Wait, World, decide
from stoker.domain.context import LaunchPlan, PlanRequest, plan_launch
from stoker.domain.residency import Resident, is_busy_victim, is_idle_victim
from stoker.domain.session import Phase
from stoker.errors import ErrorCode
from stoker.ids import RAM, DeploymentName, Generation
from stoker.testing.model_zoo import GIB, MIB, declared, request, smollm2


def resident(number: int, amount: int, **members: Any) -> Resident:
    values: dict[str, Any] = {"phase": Phase.READY, "reservation": {RAM: amount}, "replica": 0}
    return Resident(Generation(number), DeploymentName(f"d{number}"), **{**values, **members})


def world(budget: int, *residents: Resident, promised: int = 0) -> World:
    returning = sum(r.reservation[RAM] for r in residents if r.phase in {Phase.DRAINING, Phase.STOPPING})
    return World(
        now=0.0,
        budgets={RAM: budget},
        reserved={RAM: sum(r.reservation[RAM] for r in residents)},
        promised={RAM: promised} if promised else {},
        returning={RAM: returning} if returning else {},
        residents=residents,
    )


def demand(amount: int, *, may_evict: bool = True, plan: PlanRequest | None = None) -> Demand:
    return Demand(DeploymentName("new"), 0, plan or declared("new", amount), 0.0, may_evict=may_evict)


def test_what_fits_beside_the_others_is_admitted() -> None:
    got = decide(demand(4), world(10, resident(1, 6)))
    assert isinstance(got, Admit)
    assert got.plan.footprint.charge == {RAM: 4}


def test_a_model_that_never_fits_is_refused_before_anyone_is_touched() -> None:
    got = decide(demand(3 * GIB), world(2 * GIB, resident(1, GIB)))
    assert isinstance(got, Refuse)
    assert got.code is ErrorCode.NEVER_FITS
    assert (got.needed_bytes, got.headroom_bytes, got.short_bytes) == (3 * GIB, 2 * GIB, GIB)
    assert "new needs 3.00 GiB of ram; there is 2.00 GiB" in got.message
    assert got.would_fit_if == ("1.00 GiB more memory for models",)


def test_promised_memory_is_not_given_away() -> None:
    assert isinstance(decide(demand(4), world(10, promised=7)), Wait)
    assert isinstance(decide(demand(3), world(10, promised=7)), Admit)


def test_the_cheapest_idle_set_goes() -> None:
    got = decide(demand(5), world(10, resident(1, 5, reload_s=40.0), resident(2, 5, reload_s=4.0)))
    assert isinstance(got, EvictThenAdmit)
    assert (got.victims, got.earmarks) == ((2,), ())


def test_what_already_leaves_is_waited_for_and_nobody_else_goes() -> None:
    leaving = resident(1, 6, phase=Phase.STOPPING)
    got = decide(demand(6), world(10, leaving, resident(2, 4)))
    assert isinstance(got, Wait)
    assert (got.on, got.holders) == ("stopping", (1,))
    assert (got.needed, got.headroom) == ({RAM: 6}, {RAM: 0})


def test_draining_is_named_as_what_is_waited_for() -> None:
    got = decide(demand(6), world(10, resident(1, 6, phase=Phase.DRAINING)))
    assert isinstance(got, Wait)
    assert got.on == "draining"


def test_busy_sessions_are_earmarked_only_where_idle_ones_do_not_suffice() -> None:
    busy, idle = resident(1, 6, in_flight=1), resident(2, 4)
    alone = decide(demand(4), world(10, busy, idle))
    assert isinstance(alone, EvictThenAdmit)
    assert (alone.victims, alone.earmarks) == ((2,), ())
    both = decide(demand(9), world(10, busy, idle))
    assert isinstance(both, EvictThenAdmit)
    assert (both.victims, both.earmarks) == ((2,), (1,))


def test_an_idle_one_that_is_not_needed_beside_the_busy_one_stays() -> None:
    got = decide(demand(7), world(10, resident(1, 8, in_flight=1), resident(2, 2)))
    assert isinstance(got, EvictThenAdmit)
    assert (got.victims, got.earmarks) == ((), (1,))


@pytest.mark.parametrize(
    ("phase", "on"), [(Phase.INITIALIZING, "loading"), (Phase.STOP_UNCONFIRMED, "stop-unconfirmed")]
)
def test_loading_and_unconfirmed_sessions_are_waited_for_never_taken(phase: Phase, on: str) -> None:
    got = decide(demand(6), world(10, resident(1, 8, phase=phase)))
    assert isinstance(got, Wait)
    assert (got.on, got.holders) == (on, (1,))


def test_an_abandoned_load_gives_way() -> None:
    """S-16."""
    got = decide(demand(6), world(10, resident(1, 8, phase=Phase.INITIALIZING, abandoned_load=True)))
    assert isinstance(got, EvictThenAdmit)
    assert got.victims == (1,)


def test_an_idle_session_goes_before_an_abandoned_load() -> None:
    load = resident(1, 5, phase=Phase.STARTING, abandoned_load=True)
    got = decide(demand(5), world(10, load, resident(2, 5, demand_60s=9)))
    assert isinstance(got, EvictThenAdmit)
    assert got.victims == (2,)


def test_only_pinned_sessions_in_the_way_refuse_at_once_by_name() -> None:
    """R-31."""
    got = decide(demand(6), world(10, resident(1, 8, pinned=True), resident(2, 2)))
    assert isinstance(got, Refuse)
    assert got.code is ErrorCode.BLOCKED_BY_PIN
    assert "d1" in got.message
    assert got.would_fit_if[0] == "unpin d1"


def test_a_pin_that_is_not_in_the_way_changes_nothing() -> None:
    got = decide(demand(6), world(10, resident(1, 2, pinned=True), resident(2, 8)))
    assert isinstance(got, EvictThenAdmit)
    assert got.victims == (2,)


def test_without_leave_to_evict_nobody_goes() -> None:
    full = world(10, resident(1, 8))
    got = decide(demand(6, may_evict=False), full)
    assert isinstance(got, Refuse)
    assert got.code is ErrorCode.MEMORY_BUSY
    assert isinstance(decide(demand(2, may_evict=False), full), Admit)
    leaving = world(10, resident(1, 8, phase=Phase.STOPPING))
    assert isinstance(decide(demand(6, may_evict=False), leaving), Wait)


def test_nobody_is_evicted_for_a_larger_automatic_window() -> None:
    wide = request(smollm2(context_native=65_536))
    got = decide(demand(0, plan=wide), world(3 * GIB, resident(1, 3 * GIB - 400 * MIB)))
    assert isinstance(got, Admit)
    assert 8_192 <= got.plan.context_tokens < 65_536


def test_after_an_eviction_the_plan_uses_the_room_there_is() -> None:
    wide = request(smollm2(context_native=65_536))
    got = decide(demand(0, plan=wide), world(3 * GIB, resident(1, 3 * GIB)))
    assert isinstance(got, EvictThenAdmit)
    assert got.plan.context_tokens == 65_536


def test_br_202_two_claims_for_one_idle_victim_name_it_once() -> None:
    """The second claim, decided in the step after the first, waits for what is leaving (M-74)."""
    first = decide(demand(6), world(10, resident(1, 8)))
    assert isinstance(first, EvictThenAdmit)
    assert first.victims == (1,)
    leaving = resident(1, 8, phase=Phase.STOPPING)
    second = decide(demand(6), world(10, leaving, promised=6))
    assert isinstance(second, Wait)
    small = decide(demand(4), world(10, leaving, promised=6))
    assert isinstance(small, Wait)
    assert small.on == "stopping"


@st.composite
def worlds(draw: st.DrawFn) -> World:
    crowd = [
        resident(
            i,
            draw(st.integers(0, 9)),
            phase=draw(st.sampled_from([p for p in Phase if p is not Phase.GONE])),
            pinned=draw(st.booleans()),
            in_flight=draw(st.integers(0, 1)),
            abandoned_load=draw(st.booleans()),
            demand_60s=draw(st.integers(0, 2)),
        )
        for i in range(draw(st.integers(0, 7)))
    ]
    return world(draw(st.integers(0, 30)), *crowd, promised=draw(st.integers(0, 6)))


@settings(max_examples=400, deadline=None)
@given(worlds(), st.integers(1, 20), st.booleans())
def test_decide_is_total_and_what_it_admits_always_fits(here: World, amount: int, may_evict: bool) -> None:
    got = decide(demand(amount, may_evict=may_evict), here)
    room = here.budgets[RAM] - here.reserved[RAM] - here.promised.get(RAM, 0)
    by_id = {r.generation: r for r in here.residents}
    if isinstance(got, Admit):
        assert amount <= room
    elif isinstance(got, EvictThenAdmit):
        assert may_evict
        leaving = [by_id[g] for g in (*got.victims, *got.earmarks)]
        assert leaving
        assert amount <= room + sum(r.reservation[RAM] for r in leaving)
        assert not any(r.pinned for r in leaving)
        assert all(is_idle_victim(by_id[g]) or by_id[g].abandoned_load for g in got.victims)
        assert all(is_busy_victim(by_id[g]) and not is_idle_victim(by_id[g]) for g in got.earmarks)
    elif isinstance(got, Wait):
        assert amount <= here.budgets[RAM]
        assert got.headroom == {RAM: room}
    else:
        assert got.short_bytes > 0
    if amount > here.budgets[RAM]:
        assert isinstance(got, Refuse)
        assert got.code is ErrorCode.NEVER_FITS
    elif amount <= room:
        assert isinstance(got, Admit)


@settings(max_examples=200, deadline=None)
@given(worlds(), st.integers(1, 20), st.integers(0, 10))
def test_more_budget_never_turns_admit_into_refuse(here: World, amount: int, more: int) -> None:
    if isinstance(decide(demand(amount), here), Admit):
        richer = World(0.0, {RAM: here.budgets[RAM] + more}, here.reserved, here.promised, {}, here.residents)
        assert isinstance(decide(demand(amount), richer), Admit)


def test_an_admitted_plan_is_the_planner_s_own() -> None:
    """M-26 of the acceptance: preview and admission are one call."""
    plan = plan_launch(request(), {RAM: GIB})
    got = decide(demand(0, plan=request()), world(GIB))
    assert isinstance(plan, LaunchPlan)
    assert got == Admit(plan)
