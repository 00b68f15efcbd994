"""Who may go, and in which order (M-82, M-83, R-26 to R-28; V-33)."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.domain.residency import Resident, choose_victims, earmark_at, is_busy_victim, is_idle_victim
from stoker.domain.session import Phase
from stoker.ids import RAM, DeploymentName, Generation, PoolId

GIB = 1 << 30
POOLS = (RAM, PoolId("card/1"), PoolId("card/2"))


def resident(number: int, amount: int = 1, **members: object) -> Resident:
    values: dict[str, object] = {
        "generation": Generation(number),
        "deployment": DeploymentName(f"d{number}"),
        "replica": 0,
        "phase": Phase.READY,
        "reservation": {RAM: amount},
    }
    return Resident(**{**values, **members})  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.READY])
def test_only_ready_sessions_are_victims(phase: Phase) -> None:
    assert not is_idle_victim(resident(1, phase=phase))
    assert not is_busy_victim(resident(1, phase=phase))


@pytest.mark.parametrize("member", ["in_flight", "waiting", "owed"])
def test_a_busy_queued_for_or_owing_session_is_not_idle_but_may_be_earmarked(member: str) -> None:
    busy = resident(1, **{member: 1})
    assert not is_idle_victim(busy)
    assert is_busy_victim(busy)


def test_a_pinned_session_is_never_a_victim() -> None:
    assert not is_idle_victim(resident(1, pinned=True))
    assert not is_busy_victim(resident(1, pinned=True))


@pytest.mark.parametrize(("short", "expected"), [(5, {2}), (13, {1, 2}), (15, {3})])
def test_v33_cheapest_sufficient_set(short: int, expected: set[int]) -> None:
    a = resident(1, 6 * GIB, demand_60s=0, reload_s=40.0)
    b = resident(2, 8 * GIB, demand_60s=0, reload_s=4.0)
    c = resident(3, 16 * GIB, demand_60s=3, reload_s=2.0)
    chosen = choose_victims((a, b, c), {RAM: short * GIB})
    assert chosen is not None
    assert {r.generation for r in chosen} == expected


def test_nothing_short_needs_nobody_and_too_little_is_none() -> None:
    assert choose_victims((resident(1, 5),), {RAM: 0}) == ()
    assert choose_victims((resident(1, 5),), {RAM: 6}) is None
    assert choose_victims((), {RAM: 1}) is None


def test_the_longest_idle_goes_first_among_equals_and_then_the_oldest() -> None:
    young, old = resident(1, 5, last_used_at=9.0), resident(2, 5, last_used_at=3.0)
    assert choose_victims((young, old), {RAM: 5}) == (old,)
    assert choose_victims((resident(4, 5), resident(3, 5)), {RAM: 5}) == (resident(3, 5),)


residents = st.builds(
    lambda amounts, demand, reload_s, used: (dict(zip(POOLS, amounts, strict=True)), demand, reload_s, used),
    st.tuples(*(st.integers(0, 8) for _ in POOLS)),
    st.integers(0, 2),
    st.sampled_from([1.0, 2.0, 5.0]),
    st.sampled_from([0.0, 1.0, 2.0]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(residents, max_size=10), st.tuples(*(st.integers(-3, 20) for _ in POOLS)))
def test_choice_equals_brute_force_on_small_worlds(
    rows: list[tuple[dict[PoolId, int], int, float, float]], short: tuple[int, ...]
) -> None:
    crowd = tuple(
        resident(i, reservation=amounts, demand_60s=demand, reload_s=reload_s, last_used_at=used)
        for i, (amounts, demand, reload_s, used) in enumerate(rows)
    )
    need = dict(zip(POOLS, short, strict=True))

    def suffices(group: tuple[Resident, ...]) -> bool:
        return all(sum(r.reservation[pool] for r in group) >= need[pool] for pool in POOLS)

    def rank(group: tuple[Resident, ...]) -> tuple[object, ...]:
        return (
            sum(r.demand_60s for r in group), sum(r.reload_s for r in group), len(group),
            sorted(r.last_used_at for r in group), sorted(r.generation for r in group),
        )  # fmt: skip

    every = chain.from_iterable(combinations(crowd, size) for size in range(len(crowd) + 1))
    best = min((rank(group) for group in every if suffices(group)), default=None)
    chosen = choose_victims(crowd, need)
    assert (None if chosen is None else rank(chosen)) == best


@settings(max_examples=60, deadline=None)
@given(st.lists(residents, min_size=13, max_size=40), st.tuples(*(st.integers(0, 60) for _ in POOLS)))
def test_a_large_crowd_gives_a_sufficient_set_without_a_redundant_member(
    rows: list[tuple[dict[PoolId, int], int, float, float]], short: tuple[int, ...]
) -> None:
    crowd = tuple(resident(i, reservation=r, demand_60s=d, reload_s=s) for i, (r, d, s, _) in enumerate(rows))
    need = dict(zip(POOLS, short, strict=True))

    def suffices(group: tuple[Resident, ...]) -> bool:
        return all(sum(r.reservation[pool] for r in group) >= need[pool] for pool in POOLS)

    chosen = choose_victims(crowd, need)
    if chosen is None:
        assert not suffices(crowd)
        return
    assert suffices(chosen)
    assert not any(suffices(tuple(r for r in chosen if r is not one)) for one in chosen)


def test_the_order_in_which_candidates_are_named_changes_nothing() -> None:
    crowd = tuple(resident(i, 1 + i % 3, reload_s=0.1 * i) for i in range(8))
    assert choose_victims(crowd, {RAM: 7}) == choose_victims(crowd[::-1], {RAM: 7})


def test_r27_a_busy_victim_is_granted_until_the_swap_would_miss_its_bound() -> None:
    victim = resident(1, ready_at=0.0, mean_service_s=1.0)
    assert earmark_at(since=100.0, victim=victim, swap_s=2.0) == 100.0 + 15.0 - 2.0 - 1.0
    assert earmark_at(since=100.0, victim=victim, swap_s=10.0) == 100.0 + 40.0 - 10.0 - 1.0
    assert earmark_at(since=100.0, victim=replace(victim, mean_service_s=60.0), swap_s=2.0) == 100.0


def test_r28_a_session_that_has_just_become_ready_serves_two_swap_times() -> None:
    victim = resident(1, ready_at=200.0, mean_service_s=1.0)
    assert earmark_at(since=100.0, victim=victim, swap_s=20.0) == 240.0
    assert earmark_at(since=100.0, victim=replace(victim, ready_at=None), swap_s=2.0) == 112.0
