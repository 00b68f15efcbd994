"""Back-off and crash-loop holds (S-112 to S-114; field case BR-201)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.domain.restart import (
    HOLD_AT_ONCE,
    REPLAN_ONCE,
    BackOff,
    Held,
    MayStart,
    RestartState,
    after_answer,
    after_failure,
    back_off_s,
    begin_trial,
    lifted,
    may_start,
)
from stoker.errors import ErrorCode


def fail(state: RestartState, now: float, code: str = "engine-exited", *, crashed: bool = False) -> RestartState:
    return after_failure(state, now=now, code=code, message=f"{code} at {now}", jitter=0.5, crashed=crashed)


@dataclass
class Replica:
    """An engine that dies at once, asked for without pause: starts as soon as the budget lets it."""

    code: str = "engine-exited"
    crashed: bool = False
    state: RestartState = field(default_factory=RestartState)
    starts: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)

    def live(self, until_s: float, lifetime_s: float = 0.0) -> None:
        now = self.starts[-1] + lifetime_s if self.starts else 0.0
        while now < until_s:
            match may_start(self.state, now):
                case MayStart():
                    self.starts.append(now)
                    now += lifetime_s
                    self.state = fail(self.state, now, self.code, crashed=self.crashed)
                case BackOff(until=until):
                    now = until
                case Held(until=until):
                    self.held.append(now)
                    now = math.inf if until is None else until


def test_br_201_an_engine_that_always_dies_is_started_three_times_and_then_held():
    replica = Replica()
    replica.live(until_s=299.0)
    assert len(replica.starts) == 3
    held = may_start(replica.state, 299.0)
    assert isinstance(held, Held)
    assert (held.code, held.message, held.failures) == ("engine-exited", "engine-exited at 3.0", 3)
    assert held.until == 303.0


@pytest.mark.parametrize("crashed", [False, True])
@given(lifetime_s=st.floats(0.0, 250.0))
def test_br_201_never_more_than_three_starts_before_the_first_hold(crashed, lifetime_s):
    replica = Replica(crashed=crashed)
    replica.live(until_s=10_000.0, lifetime_s=lifetime_s)
    assert len([start for start in replica.starts if start <= replica.held[0]]) == 3


def test_br_201_a_good_engine_that_a_request_kills_each_time_is_held_too():
    """Ready, then dead at the first request, never an answer."""
    replica = Replica(crashed=True)
    replica.live(until_s=299.0, lifetime_s=5.0)
    assert len(replica.starts) == 3
    assert len(replica.state.crashes) == 3


def test_a_trial_comes_after_300_seconds_and_every_vain_one_doubles_the_hold_up_to_an_hour():
    replica = Replica()
    replica.live(until_s=40_000.0)
    trials = replica.starts[3:]
    first_hold = replica.starts[2]
    gaps = [later - earlier for earlier, later in zip([first_hold, *trials], trials, strict=False)]
    assert gaps[:6] == [300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]


def test_one_start_is_the_trial_and_its_failure_holds_at_once():
    held = fail(fail(fail(RestartState(), 0.0), 1.0), 2.0)
    assert isinstance(may_start(held, 301.9), Held)
    assert isinstance(may_start(held, 302.0), MayStart)
    trial = begin_trial(held)
    assert trial.on_trial
    again = fail(trial, 310.0)
    assert not again.on_trial
    assert may_start(again, 310.0) == Held(910.0, "engine-exited", "engine-exited at 310.0", 4)


def test_failures_older_than_ten_minutes_do_not_count():
    state = fail(fail(RestartState(), 0.0), 300.0)
    spaced = fail(state, 600.0)
    assert spaced.failures == (300.0, 600.0)
    assert spaced.held_until is None


def test_ten_crashes_within_an_hour_hold_in_any_case():
    state = RestartState()
    for crash in range(9):
        state = after_answer(fail(state, crash * 300.0, crashed=True))
        assert state.held_until is None
    tenth = fail(state, 2700.0, crashed=True)
    assert isinstance(may_start(tenth, 2700.0), Held)


def test_nine_crashes_and_one_older_than_an_hour_do_not_hold():
    state = RestartState()
    for crash in range(10):
        state = after_answer(fail(state, crash * 401.0, crashed=True))
        assert state.held_until is None
    assert len(state.crashes) == 9


@pytest.mark.parametrize("code", sorted(HOLD_AT_ONCE))
def test_what_can_never_work_is_held_at_the_first_failure_and_without_a_trial(code):
    replica = Replica(code)
    replica.live(until_s=100_000.0)
    assert len(replica.starts) == 1
    assert may_start(replica.state, 1e9) == Held(None, code, f"{code} at 0.0", 1)


@pytest.mark.parametrize("code", sorted(REPLAN_ONCE))
def test_want_of_memory_gets_one_start_with_a_new_plan_and_is_then_held(code):
    replica = Replica(code)
    replica.live(until_s=299.0)
    assert len(replica.starts) == 2


def test_want_of_memory_after_another_failure_still_gets_its_one_new_plan():
    state = fail(fail(RestartState(), 0.0), 5.0, "device-out-of-memory")
    assert isinstance(may_start(state, 60.0), MayStart)


def test_the_listed_codes_are_codes():
    assert {ErrorCode(code) for code in HOLD_AT_ONCE | REPLAN_ONCE}


@given(st.integers(1, 10_000), st.floats(0.0, 1.0, exclude_max=True))
def test_back_off_doubles_from_1_to_60_seconds_give_or_take_a_tenth(consecutive, jitter):
    nominal = min(60.0, 2.0 ** min(consecutive - 1, 10))
    assert 0.9 * nominal <= back_off_s(consecutive, jitter) <= 1.1 * nominal


def test_back_off_without_luck_is_1_2_4_and_so_on_to_60():
    assert [back_off_s(n, 0.5) for n in range(1, 9)] == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60])


def test_requests_wait_while_it_backs_off():
    state = fail(RestartState(), 10.0)
    assert may_start(state, 10.5) == BackOff(11.0)
    assert may_start(state, 11.0) == MayStart()


def test_only_a_completed_answer_or_a_lift_restores_the_budget():
    held = fail(fail(fail(RestartState(), 0.0), 1.0, crashed=True), 2.0)
    assert lifted(held) == RestartState()
    answered = after_answer(held)
    assert may_start(answered, 3.0) == MayStart()
    assert answered == RestartState(crashes=(1.0,))
    assert isinstance(may_start(held, 3.0), Held)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fail", "crash", "answer", "lift"]),
            st.floats(0.0, 400.0),
            st.sampled_from(["engine-exited", "device-out-of-memory", "bad-setting"]),
        ),
        max_size=40,
    )
)
def test_whatever_happens_there_are_never_three_failures_in_a_window_without_a_hold(story):
    state, now = RestartState(), 0.0
    for word, wait_s, code in story:
        now += wait_s
        if word in {"fail", "crash"}:
            state = fail(state, now, code, crashed=word == "crash")
        else:
            state = after_answer(state) if word == "answer" else lifted(state)
        recent = [at for at in state.failures if at > now - 600.0]
        if len(recent) >= 3:
            assert state.held_until is not None
        assert len(state.failures) <= len(recent) + 3 or state.held_until is not None
        assert state.hold_s in {300.0, 600.0, 1200.0, 2400.0, 3600.0}
