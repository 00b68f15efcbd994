"""What holds of every life, whatever comes in and in whatever order (sessions, acceptance 2; S-1, S-5, S-22)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from lives import BROKEN, EXIT, GENERATION, SAMPLES, begin, in_phase, name_of

from stoker.domain import lifecycle
from stoker.domain.events import EVENTS, faults
from stoker.domain.lifecycle import LEGAL, Outcome, step
from stoker.domain.lifecycle_fits import FITS, LOADING
from stoker.domain.lifecycle_notes import STAGES
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
    *(SAMPLES[name] for name in ("Stop-now", "StopUnconfirmed", "RetryStop", "StopUnconfirmed", "ForceRelease")),
]
INPUTS = st.one_of(st.sampled_from(list(SAMPLES.values())), st.sampled_from(FORWARD), varied())
# A number stands for one of the samples that fit the phase of the moment, so that stories get far.
STORIES = st.tuples(
    st.integers(0, len(FORWARD)),
    st.lists(st.tuples(st.one_of(st.integers(0, 99), st.integers(0, 99), INPUTS), st.integers(0, 2)), max_size=30),
)


class Story:
    """One life told from its entry through random inputs, checked at every step."""

    def __init__(self, entry: lifecycle.Step) -> None:
        self.entry = entry
        self.now = 0.0
        self.state: SessionState = entry.state
        self.events: list[str] = []
        self.effects: list[str] = []
        self._take(entry)

    def tell_all(self, told: tuple[int, list[tuple[Input | int, int]]]) -> None:
        forward, rest = told
        for incoming in FORWARD[:forward]:
            self.tell(incoming, 0)
        for incoming, in_flight in rest:
            self.tell(incoming, in_flight)

    def tell(self, incoming: Input | int, in_flight: int) -> None:
        if isinstance(incoming, int):
            fitting = [sample for sample in SAMPLES.values() if self.state.phase in FITS[type(sample)]]
            incoming = fitting[incoming % len(fitting)] if fitting else SAMPLES["Stop-now"]
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
    story.tell_all(told)
    story.check_end()


@settings(max_examples=200, deadline=None)
@given(entries(), STORIES)
def test_any_story_can_be_ended_by_a_confirmed_stop(entry, told):
    """No phase is a trap: stop, explain what is owed, confirm."""
    story = Story(entry)
    story.tell_all(told)
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
    forward, rest = told
    story = Story(entry)
    for incoming, in_flight in [*((one, 0) for one in FORWARD[:forward]), *rest]:
        percent, stage = story.state.percent, STAGES.index(story.state.stage)
        story.tell(incoming, in_flight)
        assert percent is None or story.state.percent >= percent
        assert STAGES.index(story.state.stage) >= stage


@settings(max_examples=200, deadline=None)
@given(STORIES)
def test_the_same_story_gives_the_same_steps(told):
    first, second = Story(begin()), Story(begin())
    first.tell_all(told)
    second.tell_all(told)
    assert first.state == second.state
    assert first.effects == second.effects


def test_the_inputs_of_the_stories_reach_every_phase_and_every_event_of_a_life():
    """Else the properties above would hold of nothing. Seeded, so that it says the same on every machine."""
    phases, events, chance = set(), set(), random.Random(7)
    for _ in range(500):
        story = Story(begin())
        for incoming in FORWARD[: chance.randint(0, len(FORWARD))]:
            story.tell(incoming, 0)
        for _ in range(10):
            phases.add(story.state.phase)
            story.tell(chance.randint(0, 99), chance.randint(0, 2))
        phases.add(story.state.phase)
        events.update(story.events)
    assert phases == set(Phase)
    assert {event for event in EVENTS if event.startswith("session.")} - events == {
        "session.earmarked",
        "session.earmark-lifted",
        "session.measured",
    }
