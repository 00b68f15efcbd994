"""The table of events is complete, and what is sent matches it field by field (S-116, C-13, C-16; acceptance 56)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.domain.events import ENVELOPE, EVENTS, Event, faults, faults_of, is_wanted

LIFE = {"deployment": "smol", "replica": 0, "generation": 7, "model": "m", "engine": "e", "unit_kind": "process"}

# Names as the two specifications list them, noun by noun.
NAMES = {
    "session": "reserved load-progressed load-completed load-failed load-cancelled settings-adopted liveness-changed "
    "drain-begun stop-begun stop-unconfirmed crashed ended force-released earmarked earmark-lifted measured",
    "replica": "held released",
    "unit": "adopted reaped forgotten reported",
    "image": "pull-progressed pulled pull-failed",
    "runtime": "reached lost",
    "pull": "progressed finished failed cancelled",
    "footprint": "exceeded suspected",
    "residency": "thrashed",
    "daemon": "started stop-begun",
    "config": "reloaded rejected",
    "deployment": "created changed removed",
    "admission": "decided stalled",
    "eviction": "decided",
    "pool": "changed",
    "ticket": "queued granted refused expired cancelled moved",
    "queue": "changed limits-changed stalled recovered",
    "request": "finished",
    "operation": "created progressed finished",
    "model": "added changed removed",
    "engine": "installed removed failed",
    "cache": "saved restored restore-failed evicted purged cleared",
    "key": "created rotated revoked expired",
    "stream": "snapshot-taken gapped",
}


def a_whole(name: str, **fields) -> Event:
    return Event("i:1", 1, 1000.0, name, {"scope": "00000000", **LIFE}, fields)


def test_the_table_has_every_event_and_no_other():
    assert set(EVENTS) == {f"{noun}.{past}" for noun, pasts in NAMES.items() for past in pasts.split()}


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_names_and_fields_are_words_of_the_wire(name):
    spec = EVENTS[name]
    assert re.fullmatch(r"[a-z]+\.[a-z]+(-[a-z]+)*", name)
    assert spec.fields
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", field) for field in spec.fields | spec.subject)
    assert not ENVELOPE & (spec.fields | spec.subject)
    assert not spec.fields & spec.subject
    assert spec.optional <= spec.fields | spec.subject


@pytest.mark.parametrize("name", sorted(name for name in EVENTS if name.startswith(("session.", "footprint."))))
def test_events_of_a_life_carry_its_common_fields(name):
    assert set(LIFE) == EVENTS[name].subject
    assert not set(LIFE) & EVENTS[name].optional


@pytest.mark.parametrize("name", sorted(EVENTS))
def test_an_event_with_its_fields_is_right_and_one_without_or_with_more_is_not(name):
    spec = EVENTS[name]
    complete = dict.fromkeys(spec.fields)
    assert faults(name, complete) == ()
    assert faults(name, {field: None for field in spec.fields if field not in spec.optional}) == ()
    assert faults(name, {**complete, "prompt": "x"}) == (f"{name} has no field prompt",)
    for field in spec.fields - spec.optional:
        lacking = {other: None for other in complete if other != field}
        assert faults(name, lacking) == (f"{name} lacks {field}",)


def test_an_unknown_event_is_a_fault():
    assert faults("session.exploded", {}) == ("there is no event session.exploded",)
    assert faults_of(a_whole("session.exploded")) == ("there is no event session.exploded",)


def test_a_whole_event_is_checked_with_its_envelope_and_its_subject():
    assert faults_of(a_whole("session.settings-adopted", changed=["temperature"])) == ()
    bare = Event("i:1", 1, 1000.0, "session.settings-adopted", {}, {"changed": []})
    assert faults_of(bare) == tuple(
        f"session.settings-adopted lacks {name}"
        for name in ("deployment", "engine", "generation", "model", "replica", "scope", "unit_kind")
    )


def test_subject_and_fields_may_stand_together_as_one():
    whole = Event("i:1", 1, 1000.0, "session.settings-adopted", fields={"scope": "0", **LIFE, "changed": []})
    assert faults_of(whole) == ()


def test_a_flat_event_is_one_object_without_nesting_of_its_parts():
    flat = a_whole("session.settings-adopted", changed=["temperature"]).flat()
    assert flat == {
        "id": "i:1",
        "at": 1000.0,
        "event": "session.settings-adopted",
        "scope": "00000000",
        **LIFE,
        "changed": ["temperature"],
    }


def test_tickets_belong_to_the_queue_and_what_happens_to_a_life_to_its_session():
    assert {EVENTS[f"ticket.{past}"].topic for past in ("queued", "granted", "refused")} == {"queue"}
    assert EVENTS["replica.held"].topic == "session"
    assert EVENTS["unit.reported"].topic == "session"
    assert EVENTS["pool.changed"].topic == "pool"


@given(st.sampled_from(sorted(EVENTS)))
def test_a_subscriber_gets_its_topics_or_everything(name):
    noun = name.partition(".")[0]
    assert is_wanted(name, ())
    assert is_wanted(name, {noun})
    assert is_wanted(name, {EVENTS[name].topic})
    assert not is_wanted(name, {"nothing"})


def test_no_event_has_a_place_for_what_must_never_be_told():
    forbidden = {"prompt", "answer", "messages", "env", "argv", "secret", "token", "key", "peer"}
    allowed = {"config.rejected": {"key"}}  # the name of a configuration key
    for name, spec in EVENTS.items():
        assert not (spec.fields | spec.subject) & forbidden - allowed.get(name, set())
