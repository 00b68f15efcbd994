"""The rules of a life that a table does not show: reasons, joins, teardown, explanations, force-release."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lives import (
    BROKEN,
    CONFIRMED,
    DRAIN,
    EXIT,
    GENERATION,
    GIB,
    NOW,
    OUT_OF_MEMORY,
    SAMPLES,
    UNCONFIRMED,
    Survivor,
    begin,
    fields_of,
    in_phase,
    names,
    run,
)

from stoker.domain.lifecycle import LEGAL, Outcome, adopted, leftover, step
from stoker.domain.lifecycle_events import retry_stop_s
from stoker.domain.session import (
    ArmTimer,
    BecameReady,
    Cancel,
    ExitExplained,
    ExitFacts,
    ExplainExit,
    Failure,
    ForceRelease,
    ForceReleaseRecorded,
    InFlightZero,
    Phase,
    Prepared,
    Reason,
    RecordAttempt,
    RetryStop,
    RoomClaimed,
    StageSeen,
    Started,
    StartFailed,
    StartUnit,
    Stop,
    StopUnconfirmed,
    StopUnit,
    SupervisorFailed,
    TimerFired,
    UnitExited,
)
from stoker.ids import RAM

EXITED = UnitExited(GENERATION, EXIT)
EXPLAINED = ExitExplained(GENERATION, BROKEN)
RETRY = RetryStop(GENERATION)
GIVE_UP = ForceRelease(GENERATION, "ann")
GIVEN_UP = ForceReleaseRecorded(GENERATION, "ann")
PORT_TAKEN = StartFailed(GENERATION, Failure("port-in-use", "Port 23100 is taken."), may_exist=False, retry_port=True)


# -- entering ------------------------------------------------------------------------------------------------------


def test_a_load_enters_reserved_says_so_claims_room_and_is_bounded():
    entry = begin(cards=("GPU-1",))
    assert names(entry) == ["session.reserved", "ClaimRoom", "ArmTimer"]
    assert entry.effects[-1] == ArmTimer(GENERATION, "reserved", 120.0)
    assert fields_of(entry, "session.reserved") == {
        "reservation": {RAM: GIB},
        "cards": ["GPU-1"],
        "ticket": "tkt_1",
        "cause": "request",
    }


def test_an_adopted_life_enters_initializing_and_has_no_load_events():
    entry = adopted(generation=GENERATION, deployment="smol", replica=0, reservation={RAM: GIB}, now=1.0)
    assert (entry.state.phase, names(entry)) == (Phase.INITIALIZING, ["WatchUnit", "WatchLoad"])
    assert names(run(entry.state, StageSeen(GENERATION, "verifying", 50))) == []
    ready = run(entry.state, BecameReady(GENERATION, None))
    assert names(ready) == ["ReleaseStartLease", "OpenUpstream"]
    crashed = run(ready.state, EXITED, EXPLAINED)
    assert "session.crashed" in names(crashed)


def test_an_adopted_life_that_is_not_ready_in_time_is_torn_down_without_a_load_event():
    entry = adopted(generation=GENERATION, deployment="smol", replica=0, reservation={RAM: GIB}, now=1.0)
    late = run(entry.state, SAMPLES["LoadTimedOut"])
    assert names(late) == ["CancelEffects", "session.stop-begun", "StopUnit"]
    assert late.state.reason is Reason.LOAD_TIMED_OUT
    gone = run(entry.state, EXITED, EXPLAINED, CONFIRMED)
    assert names(gone) == ["ReleaseRoom", "session.ended", "CleanUp"]


def test_a_leftover_enters_stop_unconfirmed_and_is_tried_again():
    entry = leftover(generation=GENERATION, deployment="smol", replica=0, reservation={RAM: GIB}, now=1.0)
    assert entry.state.phase is Phase.STOP_UNCONFIRMED
    assert entry.effects == (ArmTimer(GENERATION, "retry-stop"),)
    gone = run(entry.state, TimerFired(GENERATION, "retry-stop"), CONFIRMED)
    assert gone.state.reason is Reason.ORPHANED
    assert names(gone) == ["ReleaseRoom", "session.ended", "CleanUp"]


def test_the_first_failed_stop_of_a_leftover_is_published_and_is_a_failed_retry():
    entry = leftover(
        generation=GENERATION, deployment="smol", replica=0, reservation={RAM: GIB}, now=1.0, cause="survivors"
    )
    unproven = run(entry.state, RETRY, UNCONFIRMED)
    assert "session.stop-unconfirmed" in names(unproven)
    assert run(unproven.state, GIVE_UP).state.phase is Phase.STOPPING


# -- loading -------------------------------------------------------------------------------------------------------


def test_br_405_a_lost_port_is_tried_three_times_and_nothing_of_preparing_is_repeated():
    starting = in_phase(Phase.STARTING)
    second = run(starting, PORT_TAKEN)
    third = run(second.state, PORT_TAKEN)
    assert [second.effects, third.effects] == [(StartUnit(GENERATION, 2),), (StartUnit(GENERATION, 3),)]
    over = run(third.state, PORT_TAKEN)
    assert over.state.phase is Phase.STOPPING
    assert fields_of(over, "session.load-failed")["code"] == "port-in-use"


def test_a_port_attempt_keeps_the_start_of_the_load_deadline():
    starting = run(begin().state, RoomClaimed(GENERATION), Prepared(GENERATION), now=4.0).state
    again = step(starting, PORT_TAKEN, 9.0).state
    assert (again.load_started_at, again.since) == (4.0, 4.0)


def test_the_start_intent_exists_from_the_first_start_unit_on():
    assert not in_phase(Phase.PREPARING).has_start_intent
    assert in_phase(Phase.STARTING).has_start_intent


def test_stage_and_percent_of_a_load_never_go_back():
    state = run(in_phase(Phase.INITIALIZING), StageSeen(GENERATION, "warming-up", 80)).state
    told = run(state, StageSeen(GENERATION, "loading-weights", 40, 10, 20, 30))
    assert fields_of(told, "session.load-progressed") == {
        "stage": "warming-up",
        "percent": 80,
        "elapsed_ms": 10,
        "deadline_ms": 20,
        "ceiling_ms": 30,
        "attempt": 1,
        "substituted_card": None,
    }


def test_a_stage_that_was_seen_early_is_not_taken_back_by_the_phase():
    early = run(begin().state, StageSeen(GENERATION, "warming-up", None), RoomClaimed(GENERATION)).state
    assert (early.phase, early.stage) == (Phase.PREPARING, "warming-up")


def test_a_stage_nobody_knows_changes_nothing_but_the_percent():
    seen = run(in_phase(Phase.INITIALIZING), StageSeen(GENERATION, "odd", 12)).state
    assert (seen.stage, seen.percent) == ("loading-weights", 12)


def test_a_substituted_card_is_said_on_every_progress_event():
    card = {"wanted": "GPU-1", "used": "GPU-2", "why": "full"}
    told = run(begin(substituted_card=card).state, StageSeen(GENERATION, "preparing", None))
    assert fields_of(told, "session.load-progressed")["substituted_card"] == card


def test_a_completed_load_tells_stages_footprint_and_endpoint():
    state = run(in_phase(Phase.STARTING), Started(GENERATION, None, None, "unix", ("pids",))).state
    told = step(state, BecameReady(GENERATION, None, {RAM: 5}, {"loading-weights": 900}), 2.5)
    assert fields_of(told, "session.load-completed") == {
        "elapsed_ms": 2500,
        "stages": {"loading-weights": 900},
        "footprint": {RAM: 5},
        "endpoint_kind": "unix",
        "hardening_missing": ["pids"],
    }
    assert RecordAttempt(GENERATION, "ready") in told.effects


def test_room_not_claimed_in_time_is_denied_with_the_time_waited():
    overdue = step(begin().state, TimerFired(GENERATION, "reserved"), 120.0)
    failed = fields_of(overdue, "session.load-failed")
    assert (failed["code"], failed["reason"]) == ("room-denied", "room-denied")
    assert failed["numbers"] == {"waited_ms": 120000, "ram_bytes": GIB}


@pytest.mark.parametrize(
    ("command", "by"),
    [
        (Cancel(GENERATION, by="caller"), "caller"),
        (Cancel(GENERATION), "operator"),
        (Cancel(GENERATION, Reason.ABANDONED), "abandoned"),
        (Cancel(GENERATION, Reason.SUPERSEDED), "superseded"),
        (Stop(GENERATION, Reason.SHUTDOWN), "shutdown"),
        (Stop(GENERATION, Reason.SCALED_IN), "operator"),
    ],
)
@pytest.mark.parametrize("phase", ["reserved", "preparing", "starting", "initializing"])
def test_a_stop_or_cancel_of_a_load_is_one_load_cancelled_and_says_by_whom(phase, command, by):
    state = in_phase(Phase(phase))
    taken = run(state, command)
    assert fields_of(taken, "session.load-cancelled") == {"stage": state.stage, "by": by, "elapsed_ms": 0}
    assert taken.state.phase in LEGAL[Phase(phase)] | {Phase.GONE}


def test_a_cancel_after_ready_was_applied_is_refused_and_says_so():
    refused = step(in_phase(Phase.READY), Cancel(GENERATION), 1.0)
    assert refused.outcome is Outcome.REFUSED
    assert "ready" in refused.refusal


def test_an_error_provoked_by_a_cancel_is_reported_as_the_cancel():
    cancelled = run(in_phase(Phase.INITIALIZING), Cancel(GENERATION)).state
    late = step(cancelled, EXITED, 2.0)
    assert late.outcome is Outcome.DROPPED
    ended = fields_of(run(cancelled, CONFIRMED), "session.ended")
    assert (ended["reason"], ended["also"]) == ("cancelled", [])


# -- one teardown --------------------------------------------------------------------------------------------------


def test_a_busy_session_drains_and_then_saves_its_prompt_cache_before_the_stop():
    draining = run(in_phase(Phase.READY, in_flight=2), DRAIN, now=10.0)
    assert names(draining) == ["ArmTimer", "session.drain-begun"]
    assert fields_of(draining, "session.drain-begun") == {"reason": "operator", "in_flight": 2, "deadline_ms": 30000}
    idle = run(replace(draining.state, in_flight=0), InFlightZero(GENERATION))
    assert names(idle).index("SavePromptCache") < names(idle).index("StopUnit")


def test_a_second_drain_joins_and_only_an_earlier_deadline_moves_the_timer():
    draining = step(in_phase(Phase.READY, in_flight=1), Stop(GENERATION, Reason.CONFIG_CHANGED, drain_s=600), 0.0).state
    sooner = step(draining, Stop(GENERATION, Reason.SHUTDOWN, drain_s=10), 5.0)
    assert (sooner.outcome, sooner.effects) == (Outcome.JOINED, (ArmTimer(GENERATION, "drain", 10),))
    later = step(sooner.state, Stop(GENERATION, Reason.OPERATOR, drain_s=30), 6.0)
    assert (later.outcome, later.effects, later.state.drain_deadline) == (Outcome.JOINED, (), 15.0)
    assert later.state.reason is Reason.CONFIG_CHANGED
    assert later.state.also == (Reason.SHUTDOWN, Reason.OPERATOR)


def test_ten_callers_stop_at_once_and_there_is_one_stop():
    first = run(in_phase(Phase.READY), NOW)
    told, state = names(first), first.state
    for _ in range(9):
        joined = step(state, Stop(GENERATION, Reason.EVICTED), 1.0)
        assert (joined.outcome, joined.effects) == (Outcome.JOINED, ())
        state = joined.state
    assert told.count("StopUnit") == 1
    assert (state.reason, state.also) == (Reason.OPERATOR, (Reason.EVICTED,))


def test_a_kill_sets_the_grace_to_nothing_and_saves_nothing():
    killed = run(in_phase(Phase.READY, stop_grace_s=10.0), Stop(GENERATION, Reason.OPERATOR, "now", grace_s=0.0))
    assert killed.effects[-1] == StopUnit(GENERATION, 0.0)
    assert fields_of(killed, "session.stop-begun") == {"reason": "operator", "phase_before": "ready", "grace_s": 0.0}
    assert "SavePromptCache" not in names(killed)


def test_a_hung_engine_is_not_asked_to_save_its_prompt_cache():
    hung = run(in_phase(Phase.READY), Stop(GENERATION, Reason.HUNG, "now"))
    assert "SavePromptCache" not in names(hung)
    assert hung.state.reason is Reason.HUNG


def test_a_life_that_was_never_started_ends_in_one_step_and_passes_every_part_in_order():
    gone = run(in_phase(Phase.PREPARING), Cancel(GENERATION))
    assert names(gone) == [
        "CancelEffects",
        "session.stop-begun",
        "RecordAttempt",
        "session.load-cancelled",
        "ReleaseRoom",
        "session.ended",
        "CleanUp",
    ]
    assert fields_of(gone, "session.ended")["confirmed_by"] == "absent"


def test_a_failed_start_is_stopped_too_because_its_unit_may_exist():
    failed = run(in_phase(Phase.STARTING), StartFailed(GENERATION, BROKEN, may_exist=True))
    assert isinstance(failed.effects[-1], StopUnit)


# -- exits and explanations ----------------------------------------------------------------------------------------


def test_br_201_an_exit_while_loading_fails_the_load_as_soon_as_it_is_explained():
    exited = run(in_phase(Phase.INITIALIZING), EXITED)
    assert exited.state.reason is Reason.EXITED_BEFORE_READY
    assert "session.load-failed" not in names(exited)
    assert ExplainExit(GENERATION, EXIT, Phase.INITIALIZING) in exited.effects
    told = run(exited.state, EXPLAINED)
    failed = fields_of(told, "session.load-failed")
    assert failed["exit"] == {"code": 1, "signal": None, "oom_killed": None, "at": 1000.0, "by": "engine"}
    assert (failed["code"], failed["excerpt"], failed["numbers"]) == ("engine-exited", ["bad tensor"], {"exit": 1})
    assert RecordAttempt(GENERATION, "failed", BROKEN) in told.effects


def test_a_confirmed_end_waits_for_the_explanation_and_the_room_with_it():
    confirmed = run(in_phase(Phase.INITIALIZING), EXITED, CONFIRMED)
    assert (confirmed.state.phase, confirmed.effects) == (Phase.STOPPING, ())
    gone = run(confirmed.state, EXPLAINED)
    assert names(gone) == ["RecordAttempt", "session.load-failed", "ReleaseRoom", "session.ended", "CleanUp"]
    assert gone.state.exit == EXIT


def test_a_crash_is_published_once_with_uptime_and_the_requests_it_cost():
    ready = step(in_phase(Phase.INITIALIZING), BecameReady(GENERATION, None), 10.0).state
    exited = step(replace(ready, in_flight=3), EXITED, 25.5)
    told = step(replace(exited.state, in_flight=0), EXPLAINED, 26.0)
    crashed = fields_of(told, "session.crashed")
    assert (crashed["uptime_ms"], crashed["in_flight_failed"], crashed["code"]) == (15500, 3, "engine-exited")
    assert told.effects[0] == RecordAttempt(GENERATION, "crashed", BROKEN)


def test_a_later_explanation_is_added_to_the_attempt_and_publishes_nothing():
    crashed = run(in_phase(Phase.READY), EXITED, EXPLAINED).state
    late = run(crashed, ExitExplained(GENERATION, OUT_OF_MEMORY))
    assert late.effects == (RecordAttempt(GENERATION, "crashed", OUT_OF_MEMORY),)
    assert late.state.phase is Phase.STOPPING
    gone = run(late.state, CONFIRMED).state
    assert step(gone, EXPLAINED, 9.0).outcome is Outcome.DROPPED


def test_nothing_is_explained_of_a_unit_that_we_ended():
    stopping = in_phase(Phase.STOPPING)
    assert step(stopping, EXPLAINED, 1.0).outcome is Outcome.DROPPED


def test_an_exit_while_draining_is_a_crash_but_the_reason_stays_the_asked_one():
    crashed = run(in_phase(Phase.DRAINING), EXITED, EXPLAINED)
    assert "session.crashed" in names(crashed)
    ended = fields_of(run(crashed.state, CONFIRMED), "session.ended")
    assert (ended["reason"], ended["also"]) == ("operator", ["crashed"])


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (ExitFacts(signal=9, oom_killed=True), Reason.OUT_OF_MEMORY),
        (ExitFacts(code=97, by="watchdog"), Reason.HEARTBEAT_LOST),
        (ExitFacts(code=96, by="watchdog"), Reason.CRASHED),
        (ExitFacts(code=97), Reason.CRASHED),
    ],
)
def test_an_exit_that_speaks_for_itself_gives_the_reason(facts, reason):
    assert run(in_phase(Phase.READY), UnitExited(GENERATION, facts)).state.reason is reason


def test_what_the_explanation_finds_is_kept_beside_the_first_reason():
    told = run(in_phase(Phase.READY), EXITED, ExitExplained(GENERATION, OUT_OF_MEMORY)).state
    assert (told.reason, told.also) == (Reason.CRASHED, (Reason.OUT_OF_MEMORY,))


# -- an end that is not proven -------------------------------------------------------------------------------------


def test_stop_unconfirmed_keeps_its_reservation_and_names_the_survivors():
    unproven = run(in_phase(Phase.STOPPING), UNCONFIRMED)
    assert unproven.state.reservation == {RAM: GIB}
    assert "ReleaseRoom" not in names(unproven)
    told = fields_of(unproven, "session.stop-unconfirmed")
    assert told["survivors"] == [{"pid": 9, "name": "worker", "bytes": 4096}]
    assert (told["unit_id"], told["cause"]) == ("stoker-00000000-7", "survivors")
    assert (told["attempts"], told["next_retry_ms"]) == (1, 1000)
    assert "--force-release 7" in told["remedy"]


def test_an_unconfirmed_stop_is_published_the_first_time_and_when_its_cause_changes():
    def told_by(state, cause):
        step_ = run(state, StopUnconfirmed(GENERATION, cause))
        return step_.state, "session.stop-unconfirmed" in names(step_)

    state, first = told_by(in_phase(Phase.STOPPING), "no-answer")
    state, same = told_by(run(state, RETRY).state, "no-answer")
    state, other = told_by(run(state, RETRY).state, "survivors")
    assert (first, same, other) == (True, False, True)
    assert state.stop_attempts == 3


def test_retries_of_a_stop_come_after_1_2_4_8_16_32_and_then_every_60_seconds():
    assert [retry_stop_s(attempts) for attempts in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    state, delays = in_phase(Phase.STOPPING), []
    for _ in range(4):
        unproven = step(state, UNCONFIRMED, 100.0).state
        delays.append(unproven.next_retry_at - 100.0)
        state = run(unproven, TimerFired(GENERATION, "retry-stop")).state
    assert delays == [1, 2, 4, 8]


def test_every_unconfirmed_stop_arms_the_back_off_without_end():
    state = in_phase(Phase.STOPPING)
    for _ in range(30):
        unproven = run(state, StopUnconfirmed(GENERATION, "survivors", survivors=(Survivor(9, "worker"),)))
        assert unproven.effects[0] == ArmTimer(GENERATION, "retry-stop")
        state = run(unproven.state, TimerFired(GENERATION, "retry-stop")).state


def test_a_late_exit_completes_the_ordinary_teardown():
    gone = run(in_phase(Phase.STOP_UNCONFIRMED), EXITED, CONFIRMED)
    assert names(gone) == ["ReleaseRoom", "session.ended", "CleanUp"]


def test_force_release_is_refused_before_a_retry_has_failed():
    for phase in set(Phase) - {Phase.STOP_UNCONFIRMED}:
        assert step(in_phase(phase), GIVE_UP, 1.0).outcome is Outcome.REFUSED
    refused = step(in_phase(Phase.STOP_UNCONFIRMED), GIVE_UP, 1.0)
    assert refused.outcome is Outcome.REFUSED
    assert "retry" in refused.refusal


def test_force_release_is_written_first_and_releases_once():
    unproven = run(in_phase(Phase.STOP_UNCONFIRMED), RETRY, UNCONFIRMED).state
    asked = run(unproven, GIVE_UP)
    assert names(asked) == ["RecordForceRelease"]
    gone = run(asked.state, GIVEN_UP)
    assert names(gone) == ["ReleaseRoom", "session.force-released", "session.ended"]
    told = fields_of(gone, "session.force-released")
    assert told == {
        "by": "ann",
        "unit_id": "stoker-00000000-7",
        "released": {RAM: GIB},
        "cause": "survivors",
    }
    ended = fields_of(gone, "session.ended")
    assert (ended["reason"], ended["also"], ended["confirmed_by"]) == ("operator", ["force-released"], "force-release")
    assert step(gone.state, GIVEN_UP, 2.0).outcome is Outcome.DROPPED


def test_a_force_release_that_could_not_be_written_leaves_everything_held():
    unproven = run(in_phase(Phase.STOP_UNCONFIRMED), RETRY, UNCONFIRMED).state
    failed = run(unproven, GIVE_UP, StopUnconfirmed(GENERATION, "runtime-error", "disk full"))
    assert failed.state.phase is Phase.STOP_UNCONFIRMED
    assert step(run(failed.state, RETRY).state, GIVEN_UP, 3.0).outcome is Outcome.DROPPED


def test_a_force_release_before_the_explanation_still_tells_the_loads_outcome_first():
    exited = run(in_phase(Phase.INITIALIZING), EXITED, UNCONFIRMED, RETRY, UNCONFIRMED).state
    gone = run(exited, GIVE_UP, GIVEN_UP)
    assert names(gone) == [
        "RecordAttempt",
        "session.load-failed",
        "ReleaseRoom",
        "session.force-released",
        "session.ended",
    ]


# -- broken supervisors --------------------------------------------------------------------------------------------


def test_a_supervisor_that_fails_ends_its_load_as_an_internal_error():
    failed = run(in_phase(Phase.INITIALIZING), SupervisorFailed(GENERATION, "KeyError: 'x'"))
    told = fields_of(failed, "session.load-failed")
    assert (told["code"], told["reason"]) == ("internal", "internal-error")
    assert "KeyError" in told["message"]


def test_a_supervisor_that_fails_while_stopping_begins_anew_once_and_then_backs_off():
    broken = SupervisorFailed(GENERATION, "boom")
    again = run(in_phase(Phase.STOPPING), broken)
    assert names(again) == ["CancelEffects", "StopUnit"]
    backed_off = run(again.state, broken)
    assert backed_off.state.phase is Phase.STOP_UNCONFIRMED
    assert ArmTimer(GENERATION, "retry-stop") in backed_off.effects
    assert "session.stop-unconfirmed" in names(backed_off)


def test_an_explanation_that_died_with_its_supervisor_does_not_hold_the_end_back():
    confirmed = run(in_phase(Phase.READY), EXITED, CONFIRMED).state
    gone = run(confirmed, SupervisorFailed(GENERATION, "boom"))
    assert names(gone) == ["RecordAttempt", "session.crashed", "ReleaseRoom", "session.ended", "CleanUp"]


def test_the_machine_takes_no_edge_that_legal_lacks():
    from stoker.domain.lifecycle import _to

    with pytest.raises(AssertionError, match="no edge from gone to ready"):
        _to(in_phase(Phase.GONE), Phase.READY, 1.0)
