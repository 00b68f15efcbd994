"""LEGAL, S-8 and the code agree for every phase and input (sessions, acceptance 1)."""

from __future__ import annotations

import pytest
from lives import SAMPLES, in_phase, names

from stoker.domain.lifecycle import LEGAL, Outcome, step
from stoker.domain.lifecycle_fits import FITS, LOADING, MAY_HAVE_UNIT
from stoker.domain.session import Command, Input, Phase

CANCELLED = ["RecordAttempt", "session.load-cancelled"]
FAILED = ["RecordAttempt", "session.load-failed"]
UNPLACED_CANCELLED = ["ReleaseRoom", *CANCELLED, "session.ended"]
UNPLACED_FAILED = ["ReleaseRoom", *FAILED, "session.ended"]
BEGUN = ["CancelEffects", "session.stop-begun"]
PROVEN = ["ReleaseRoom", "session.ended", "CleanUp"]
TORN_DOWN_READY = [*BEGUN, "CloseUpstream", "StopUnit"]
SAVED_FIRST = [*BEGUN, "CloseUpstream", "SavePromptCache", "StopUnit"]

# The table of S-8, written out by hand: (phase, input) -> next phase and effects in order. A life that was never begun
# on the host passes `stopping` within the step and is gone (T6). What is not here must be refused or dropped.
S8: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("reserved", "RoomClaimed"): ("preparing", ["PrepareUnit"]),
    ("reserved", "RoomDenied"): ("gone", UNPLACED_FAILED),
    ("reserved", "Cancel"): ("gone", UNPLACED_CANCELLED),
    ("reserved", "Stop-drain"): ("gone", UNPLACED_CANCELLED),
    ("reserved", "Stop-now"): ("gone", UNPLACED_CANCELLED),
    ("reserved", "TimerFired-reserved"): ("gone", UNPLACED_FAILED),
    ("reserved", "SupervisorFailed"): ("gone", UNPLACED_FAILED),
    ("reserved", "StageSeen"): ("reserved", ["session.load-progressed"]),
    ("preparing", "Prepared"): ("starting", ["StartUnit"]),
    ("preparing", "PrepareFailed"): ("gone", [*BEGUN, *FAILED, *PROVEN]),
    ("preparing", "Cancel"): ("gone", [*BEGUN, *CANCELLED, *PROVEN]),
    ("preparing", "Stop-drain"): ("gone", [*BEGUN, *CANCELLED, *PROVEN]),
    ("preparing", "Stop-now"): ("gone", [*BEGUN, *CANCELLED, *PROVEN]),
    ("preparing", "SupervisorFailed"): ("gone", [*BEGUN, *FAILED, *PROVEN]),
    ("preparing", "StageSeen"): ("preparing", ["session.load-progressed"]),
    ("starting", "Started"): ("initializing", ["WatchUnit", "WatchLoad"]),
    ("starting", "StartFailed-port"): ("starting", ["StartUnit"]),
    ("starting", "StartFailed"): ("stopping", [*BEGUN, *FAILED, "StopUnit"]),
    ("starting", "Cancel"): ("stopping", [*BEGUN, *CANCELLED, "StopUnit"]),
    ("starting", "Stop-drain"): ("stopping", [*BEGUN, *CANCELLED, "StopUnit"]),
    ("starting", "Stop-now"): ("stopping", [*BEGUN, *CANCELLED, "StopUnit"]),
    ("starting", "SupervisorFailed"): ("stopping", [*BEGUN, *FAILED, "StopUnit"]),
    ("starting", "StageSeen"): ("starting", ["session.load-progressed"]),
    ("initializing", "BecameReady"): (
        "ready",
        ["ReleaseStartLease", "OpenUpstream", "RecordAttempt", "session.load-completed"],
    ),
    ("initializing", "ReadyRefused"): ("stopping", [*BEGUN, *FAILED, "StopUnit"]),
    ("initializing", "LoadTimedOut"): ("stopping", [*BEGUN, *FAILED, "StopUnit"]),
    ("initializing", "UnitExited"): ("stopping", [*BEGUN, "ExplainExit", "StopUnit"]),
    ("initializing", "Cancel"): ("stopping", [*BEGUN, *CANCELLED, "StopUnit"]),
    ("initializing", "Stop-drain"): ("stopping", [*BEGUN, *CANCELLED, "StopUnit"]),
    ("initializing", "Stop-now"): ("stopping", [*BEGUN, *CANCELLED, "StopUnit"]),
    ("initializing", "SupervisorFailed"): ("stopping", [*BEGUN, *FAILED, "StopUnit"]),
    ("initializing", "StageSeen"): ("initializing", ["session.load-progressed"]),
    ("ready", "AdoptSettings"): ("ready", ["session.settings-adopted"]),
    ("ready", "LivenessChanged"): ("ready", ["session.liveness-changed"]),
    ("ready", "Stop-drain"): ("stopping", SAVED_FIRST),
    ("ready", "Stop-now"): ("stopping", TORN_DOWN_READY),
    ("ready", "UnitExited"): ("stopping", [*BEGUN, "CloseUpstream", "ExplainExit", "StopUnit"]),
    ("ready", "SupervisorFailed"): ("stopping", TORN_DOWN_READY),
    ("draining", "InFlightZero"): ("stopping", SAVED_FIRST),
    ("draining", "DrainExpired"): ("stopping", SAVED_FIRST),
    ("draining", "TimerFired-drain"): ("stopping", SAVED_FIRST),
    ("draining", "Stop-now"): ("stopping", TORN_DOWN_READY),
    ("draining", "Stop-drain"): ("draining", []),
    ("draining", "LivenessChanged"): ("draining", ["session.liveness-changed"]),
    ("draining", "UnitExited"): ("stopping", [*BEGUN, "CloseUpstream", "ExplainExit", "StopUnit"]),
    ("draining", "SupervisorFailed"): ("stopping", TORN_DOWN_READY),
    ("stopping", "Stop-drain"): ("stopping", []),
    ("stopping", "Stop-now"): ("stopping", []),
    ("stopping", "StopConfirmed"): ("gone", PROVEN),
    ("stopping", "StopUnconfirmed"): ("stop-unconfirmed", ["ArmTimer", "session.stop-unconfirmed"]),
    ("stopping", "SupervisorFailed"): ("stopping", ["CancelEffects", "StopUnit"]),
    ("stop-unconfirmed", "RetryStop"): ("stopping", ["StopUnit"]),
    ("stop-unconfirmed", "Stop-drain"): ("stopping", ["StopUnit"]),
    ("stop-unconfirmed", "Stop-now"): ("stopping", ["StopUnit"]),
    ("stop-unconfirmed", "TimerFired-retry-stop"): ("stopping", ["StopUnit"]),
    ("stop-unconfirmed", "UnitExited"): ("stopping", ["StopUnit"]),
    ("stop-unconfirmed", "SupervisorFailed"): ("stopping", ["StopUnit"]),
}

# Inputs that fit their phase and still say nothing to this plain life: nobody exited, nobody gave anything up.
MOOT = {("stopping", "ExitExplained"), ("stopping", "ForceReleaseRecorded"), ("stop-unconfirmed", "ExitExplained")}
MOOT |= {(phase, f"TimerFired-{timer}") for phase in Phase for timer in ("reserved", "drain", "retry-stop")} - set(S8)

EVERY = [(phase, name) for phase in Phase for name in SAMPLES]


@pytest.mark.parametrize(("phase", "name"), EVERY)
def test_every_phase_and_input_does_what_the_table_says(phase, name):
    incoming, state = SAMPLES[name], in_phase(phase)
    taken = step(state, incoming, 5.0)
    expected = S8.get((phase, name))
    if expected is None:
        assert taken.outcome is (Outcome.REFUSED if isinstance(incoming, Command) else Outcome.DROPPED)
        assert taken.state is state
        assert taken.effects == ()
        return
    assert taken.outcome in {Outcome.APPLIED, Outcome.JOINED}
    assert (taken.state.phase, names(taken)) == expected


@pytest.mark.parametrize(("phase", "name"), EVERY)
def test_every_step_takes_a_legal_edge_or_passes_stopping_when_there_is_no_unit(phase, name):
    state = in_phase(phase)
    after = step(state, SAMPLES[name], 5.0).state.phase
    if after is phase or after in LEGAL[phase]:
        return
    assert after is Phase.GONE
    assert not state.has_start_intent
    assert Phase.STOPPING in LEGAL[phase]
    assert Phase.GONE in LEGAL[Phase.STOPPING]


@pytest.mark.parametrize(("phase", "name"), EVERY)
def test_what_fits_is_what_the_table_lists(phase, name):
    listed = (phase, name) in S8 or (phase, name) in MOOT or name == "ForceRelease"
    if phase in FITS[type(SAMPLES[name])]:
        assert listed
    else:
        assert (phase, name) not in S8


def test_legal_is_the_table_of_s_5():
    assert {phase.value: {after.value for after in afters} for phase, afters in LEGAL.items()} == {
        "reserved": {"preparing", "gone"},
        "preparing": {"starting", "stopping"},
        "starting": {"initializing", "stopping"},
        "initializing": {"ready", "stopping"},
        "ready": {"draining", "stopping"},
        "draining": {"stopping"},
        "stopping": {"stop-unconfirmed", "gone"},
        "stop-unconfirmed": {"stopping"},
        "gone": set(),
    }


def test_every_edge_of_legal_is_taken_by_some_input():
    taken = {(phase, after) for (phase, _), (after, _) in S8.items() if phase != after}
    drain = ("ready", "draining")  # with work in flight
    passed = {("preparing", "stopping")}  # on the way to gone, within one step
    edges = {(phase, after) for phase, afters in LEGAL.items() for after in afters}
    assert edges == (taken | {drain} | passed) - {("preparing", "gone")}


def test_no_path_leaves_gone():
    gone = in_phase(Phase.GONE)
    assert {step(gone, incoming, 9.0).outcome for incoming in SAMPLES.values()} == {Outcome.REFUSED, Outcome.DROPPED}
    assert all(step(gone, incoming, 9.0).state is gone for incoming in SAMPLES.values())


def test_every_input_has_a_sample_and_a_row_of_phases():
    every = set(Input.__args__)
    assert set(FITS) == every
    assert {type(sample) for sample in SAMPLES.values()} == every


def test_only_gone_and_what_comes_before_a_start_may_have_no_unit():
    assert frozenset(Phase) - MAY_HAVE_UNIT == {Phase.RESERVED, Phase.PREPARING, Phase.GONE}
    assert {Phase.RESERVED, Phase.PREPARING, Phase.STARTING, Phase.INITIALIZING} == LOADING


@pytest.mark.parametrize("phase", list(Phase))
def test_a_refused_command_names_the_phase_and_where_it_is_legal(phase):
    for incoming in SAMPLES.values():
        taken = step(in_phase(phase), incoming, 5.0)
        if taken.outcome is Outcome.REFUSED:
            assert phase in taken.refusal
        else:
            assert taken.refusal is None
