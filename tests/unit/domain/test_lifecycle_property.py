"""What holds of every life, whatever comes in and in whatever order (sessions, acceptance 2; S-1, S-5, S-22)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from lives import BROKEN, EXIT, GENERATION, SAMPLES, begin, in_phase, name_of

from stoker.domain import lifecycle
from stoker.domain.events import faults
from stoker.domain.lifecycle import LEGAL, Outcome, step
from stoker.domain.lifecycle_fits import LOADING
from stoker.domain.session import (
    ASKED,
    BecameReady,
    Cancel,
    ExitExplained,
    ExitFacts,
    Failure,
    Input,
    Phase,
    Prepared,
    Publish,
    Reason,
    RoomClaimed,
    SessionState,
    StageSeen,
    Started,
    Stop,
    StopUnconfirmed,
    UnitExited,
)
from stoker.ids import RAM, DeploymentName, Generation

LOAD_OUTCOMES = ("session.load-completed", "session.load-failed", "session.load-cancelled")


def entries() -> st.SearchStrategy[lifecycle.Step]:
    common = {"generation": GENERATION, "deployment": DeploymentName("smol"), "replica": 0, "now": 0.0}
    room = {"reservation": {RAM: 1 << 30}}
    return st.sampled_from(
        [begin(), begin(stop_grace_s=3.0), lifecycle.adopted(**common, **room), lifecycle.leftover(**common, **room)]
    )


def varied() -> st.SearchStrategy[Input]:
    """Inputs whose details matter, beside the plain samples."""
    reasons = st.sampled_from(list(Reason))
    return st.one_of(
        st.builds(Stop, st.just(GENERATION), reasons, st.sampled_from(["drain", "now"]), st.floats(0, 600)),
        st.builds(Cancel, st.just(GENERATION), st.sampled_from(sorted(ASKED))),
        st.builds(
            StopUnconfirmed, st.just(GENERATION), st.sampled_from(["survivors", "no-answer", "identity-unreadable"])
        ),
        st.builds(
            ExitExplained,
            st.just(GENERATION),
            st.builds(Failure, st.sampled_from(["engine-fault", "host-out-of-memory", "device-lost"]), st.just("x")),
        ),
        st.builds(
            UnitExited,
            st.just(GENERATION),
            st.sampled_from([EXIT, ExitFacts(oom_killed=True), ExitFacts(code=97, by="watchdog")]),
        ),
        st.builds(
            StageSeen,
            st.just(GENERATION),
            st.sampled_from(["loading-weights", "warming-up", "odd"]),
            st.none() | st.integers(0, 100),
        ),
    )


FORWARD = [
    RoomClaimed(GENERATION),
    Prepared(GENERATION),
    Started(GENERATION, None, None),
    BecameReady(GENERATION, None),
]
INPUTS = st.one_of(st.sampled_from(list(SAMPLES.values())), st.sampled_from(FORWARD), varied())
STORIES = st.lists(st.tuples(INPUTS, st.integers(0, 2)), max_size=40)


class Story:
    """One life told from its entry through random inputs, checked at every step."""

    def __init__(self, entry: lifecycle.Step) -> None:
        self.entry = entry
        self.now = 0.0
        self.state: SessionState = entry.state
        self.events: list[str] = []
        self.effects: list[str] = []
        self._take(entry)

    def tell(self, incoming: Input, in_flight: int) -> None:
        self.now += 0.25
        before = replace(self.state, in_flight=in_flight)
        taken = step(before, incoming, self.now)
        if taken.outcome in {Outcome.DROPPED, Outcome.REFUSED}:
            assert taken.state is before
            assert taken.effects == ()
            assert (taken.refusal is None) == (taken.outcome is Outcome.DROPPED)
        self._check_edge(before, taken)
        self.state = taken.state
        self._take(taken)

    def _check_edge(self, before: SessionState, taken: lifecycle.Step) -> None:
        after = taken.state
        assert before.reason is None or after.reason is before.reason
        assert set(before.also) <= set(after.also)
        assert after.reason not in after.also
        assert after.reservation == before.reservation
        passes = not before.has_start_intent and after.phase is Phase.GONE
        assert after.phase is before.phase or after.phase in LEGAL[before.phase] or passes
        released = [name_of(effect) for effect in taken.effects].count("ReleaseRoom")
        assert released == (before.phase is not Phase.GONE and after.phase is Phase.GONE)

    def _take(self, taken: lifecycle.Step) -> None:
        for effect in taken.effects:
            self.effects.append(name_of(effect))
            if isinstance(effect, Publish):
                assert faults(effect.event, effect.fields) == ()
                self.events.append(effect.event)

    def check_end(self) -> None:
        counted, state = Counter(self.events), self.state
        outcomes = sum(counted[event] for event in LOAD_OUTCOMES)
        entered = self.entry.state.phase is Phase.RESERVED
        gone = state.phase is Phase.GONE
        assert outcomes == 0 if not entered else outcomes <= 1
        assert not gone or not entered or outcomes == 1
        assert counted["session.ended"] == gone
        assert not gone or self.events[-1] == "session.ended"
        assert counted["session.crashed"] <= 1
        if counted["session.crashed"] and entered:
            assert self.events.index("session.load-completed") < self.events.index("session.crashed")
        assert counted["session.stop-begun"] <= 1
        assert self.effects.count("ReleaseRoom") == gone
        assert not (state.phase in LOADING and outcomes)
        assert ("StartUnit" in self.effects) <= state.has_start_intent


@settings(max_examples=400, deadline=None)
@given(entries(), STORIES)
def test_any_story_releases_once_at_gone_and_tells_one_outcome(entry, told):
    story = Story(entry)
    for incoming, in_flight in told:
        story.tell(incoming, in_flight)
    story.check_end()


@settings(max_examples=200, deadline=None)
@given(entries(), STORIES)
def test_any_story_can_be_ended_by_a_confirmed_stop(entry, told):
    """No phase is a trap: stop, explain what is owed, confirm."""
    story = Story(entry)
    for incoming, in_flight in told:
        story.tell(incoming, in_flight)
    for incoming in (Stop(GENERATION, Reason.OPERATOR, "now"), ExitExplained(GENERATION, BROKEN)):
        story.tell(incoming, 0)
    story.tell(SAMPLES["StopConfirmed"], 0)
    if story.state.awaiting_explanation:
        story.tell(ExitExplained(GENERATION, BROKEN), 0)
    assert story.state.phase is Phase.GONE
    story.check_end()


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(Phase)), INPUTS, st.integers(0, 6))
def test_what_is_meant_for_another_generation_changes_nothing(phase, incoming, generation):
    state = in_phase(phase)
    taken = step(state, replace(incoming, generation=Generation(generation)), 3.0)
    assert taken.state is state
    assert taken.effects == ()
    assert taken.outcome in {Outcome.DROPPED, Outcome.REFUSED}


@settings(max_examples=200, deadline=None)
@given(entries(), STORIES)
def test_percent_and_stage_never_go_back(entry, told):
    story = Story(entry)
    for incoming, in_flight in told:
        percent = story.state.percent
        story.tell(incoming, in_flight)
        assert percent is None or story.state.percent >= percent


@settings(max_examples=200, deadline=None)
@given(STORIES)
def test_the_same_story_gives_the_same_steps(told):
    first, second = Story(begin()), Story(begin())
    for incoming, in_flight in told:
        first.tell(incoming, in_flight)
        second.tell(incoming, in_flight)
    assert first.state == second.state
    assert first.effects == second.effects
