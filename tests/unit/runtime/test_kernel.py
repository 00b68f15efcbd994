"""The kernel, one step at a time: grants, swaps, keep-alive, holds, unconfirmed stops, orders."""

from __future__ import annotations

import pytest
from desk import Desk

from stoker.domain.session import (
    ExitExplained,
    ExitFacts,
    Failure,
    StopConfirmed,
    StopUnconfirmed,
    StopUnit,
    SupervisorFailed,
    UnitExited,
    WatchLoad,
)  # fmt: skip
from stoker.errors import ErrorCode, StokerError
from stoker.ports.journal import OperationRow
from stoker.runtime import inputs
from stoker.runtime.orders import operation_fields
from stoker.runtime.tickets import End, TicketState


def test_a_request_for_a_cold_model_loads_it_and_is_granted() -> None:
    desk = Desk(a=100)
    ticket = desk.ask("a")
    assert ticket.state is TicketState.GRANTED
    assert desk.phases() == {"a": "ready"}
    assert desk.reserved_mib() == 100
    assert desk.names("session.") == [
        "session.reserved", "session.load-completed",
    ]  # fmt: skip


def test_many_callers_share_one_load_and_the_first_to_leave_changes_nothing() -> None:
    """S-15, R-43."""
    desk = Desk(a=100)
    desk.hold = {WatchLoad}
    tickets = [desk.ask("a") for _ in range(5)]
    desk.leave(tickets[0], End.CLIENT_GONE)
    desk.hold = set()
    desk.let_go()
    assert desk.starts() == 1
    assert tickets[0].state is TicketState.CANCELLED
    assert tickets[1].state is TicketState.GRANTED
    for ticket in tickets[1:]:
        assert ticket.state is TicketState.GRANTED
        desk.leave(ticket)
    assert not desk.kernel.state.waiting


def test_br_301_a_busy_model_is_not_evicted_and_its_answer_comes_whole() -> None:
    desk = Desk(budget_mib=150, a=100, b=100)
    first = desk.ask("a")
    second = desk.ask("b")
    assert desk.phases() == {"a": "ready"}
    assert second.state is TicketState.WAITING
    desk.leave(first)
    assert second.state is TicketState.GRANTED
    assert desk.phases() == {"b": "ready"}


def test_br_301_a_loading_model_is_no_victim_and_serves_the_request_it_was_loaded_for() -> None:
    desk = Desk(budget_mib=150, a=100, b=100)
    desk.hold = {WatchLoad}
    first, second = desk.ask("a"), desk.ask("b")
    assert desk.phases() == {"a": "initializing"}
    desk.hold = set()
    desk.let_go()
    assert first.state is TicketState.GRANTED
    assert second.state is TicketState.WAITING
    desk.leave(first)
    assert second.state is TicketState.GRANTED


def test_br_301_idle_time_begins_when_the_last_request_ends() -> None:
    desk = Desk(a=100)
    desk.put("a", keep_alive_s=2.0)
    ticket = desk.ask("a")
    generation = ticket.generation
    desk.wait(5.0)
    desk.leave(ticket)
    desk.wait(1.0)
    again = desk.ask("a")
    assert again.generation == generation
    desk.leave(again)
    desk.wait(2.1)
    assert desk.phases() == {}
    assert [e.fields["reason"] for e in desk.events if e.event == "session.ended"] == ["idle"]


def test_br_202_two_waiters_one_victim_both_are_served_and_it_is_stopped_once() -> None:
    desk = Desk(budget_mib=150, a=100, b=100, c=100)
    desk.leave(desk.ask("a"))
    desk.hold = {StopUnit}
    b, c = desk.ask("b"), desk.ask("c")
    desk.hold = set()
    desk.let_go()
    assert b.state is TicketState.GRANTED
    assert c.state is TicketState.WAITING
    desk.leave(b)
    assert c.state is TicketState.GRANTED
    stops = [e for e in desk.events if e.event == "session.stop-begun" and e.fields["deployment"] == "a"]
    assert len(stops) == 1
    desk.leave(c)
    assert not desk.kernel.state.waiting


def test_an_earmark_bounds_the_wait_of_another_model_under_an_endless_stream() -> None:
    """R-27, R-32: a busy model goes on being granted until its time has come, then gives way."""
    desk = Desk(budget_mib=150, a=100, b=100)
    current = desk.ask("a")
    b = desk.ask("b")
    waited = 0.0
    while b.state is TicketState.WAITING and waited < 60:
        following = desk.ask("a")
        desk.wait(0.5)
        waited += 0.5
        desk.leave(current)
        current = following
    assert b.state is TicketState.GRANTED
    assert waited <= 30
    assert "session.earmarked" in desk.names()
    desk.leave(b)
    assert current.state is TicketState.GRANTED


def test_an_earmark_is_lifted_when_the_contender_leaves() -> None:
    """R-30, BR-704."""
    desk = Desk(budget_mib=150, a=100, b=100)
    desk.ask("a")
    b = desk.ask("b")
    desk.wait(40)
    assert "session.earmarked" in desk.names()
    waiting = desk.ask("a")
    desk.leave(b, End.CLIENT_GONE)
    assert "session.earmark-lifted" in desk.names()
    assert waiting.state is TicketState.WAITING
    assert desk.phases() == {"a": "ready"}


@pytest.mark.parametrize("state", ["cold", "loading", "resident"])
def test_br_701_the_queue_limit_is_the_same_whatever_the_model_is_doing(state: str) -> None:
    desk = Desk(a=100)
    desk.put("a", max_in_flight=1, max_queued=1)
    if state == "resident":
        desk.leave(desk.ask("a"))
    else:
        desk.hold = {WatchLoad} if state == "loading" else set()
    taken, refused = 0, []
    for _ in range(6):
        try:
            desk.ask("a")
            taken += 1
        except StokerError as error:
            refused.append(error)
    assert taken == 2
    assert {error.code for error in refused} == {ErrorCode.QUEUE_FULL}
    assert all(1 <= (error.retry_after_s or 0) <= 60 for error in refused)


def test_br_701_a_queue_limit_of_zero_refuses_the_second_request() -> None:
    desk = Desk(a=100)
    desk.put("a", max_in_flight=1, max_queued=0)
    desk.ask("a")
    with pytest.raises(StokerError, match="max_queued allows 0"):
        desk.ask("a")


def test_a_waiting_limit_ends_the_wait_and_says_how_long_it_was() -> None:
    """R-22."""
    desk = Desk(a=100)
    desk.put("a", max_in_flight=1, max_wait_s=3.0)
    desk.ask("a")
    late = desk.ask("a")
    desk.wait(3.1)
    assert late.state is TicketState.EXPIRED
    assert late.error is not None
    assert late.error.code is ErrorCode.QUEUE_TIMEOUT
    assert "3.0 s" in late.error.message


def test_time_spent_loading_does_not_eat_into_the_waiting_limit() -> None:
    """R-22."""
    desk = Desk(a=100)
    desk.put("a", max_wait_s=3.0)
    desk.hold = {WatchLoad}
    ticket = desk.ask("a")
    desk.wait(30)
    assert ticket.state is TicketState.WAITING
    desk.hold = set()
    desk.let_go()
    assert ticket.state is TicketState.GRANTED


def crash_while_loading(desk: Desk, code: str = "engine-exited") -> None:
    generation = max(desk.kernel.state.sessions)
    desk.post(UnitExited(generation, ExitFacts(code=1)))
    desk.post(ExitExplained(generation, Failure(code, "It cannot work.")))


def test_br_201_an_engine_that_always_dies_is_started_three_times_and_then_held() -> None:
    desk = Desk(a=100)
    desk.hold = {WatchLoad}
    errors = []
    for _ in range(5):
        try:
            ticket = desk.ask("a")
        except StokerError as error:
            errors.append(error)
            continue
        desk.wait(20)
        crash_while_loading(desk)
        desk.held.clear()
        assert ticket.state is TicketState.REFUSED
        assert ticket.error is not None
        errors.append(ticket.error)
    assert desk.starts() <= 3
    assert [error.code for error in errors][-2:] == [ErrorCode.CRASH_LOOP_HELD] * 2
    assert errors[-1].retry_after_s
    assert desk.reserved_mib() == 0
    desk.hold = set()
    desk.post(inputs.LoadDeployment("a", "operator"))
    assert desk.phases() == {"a": "ready"}


def test_br_402_an_unconfirmed_stop_keeps_its_reservation_and_the_load_that_needs_it_waits() -> None:
    """S-30, S-31, M-88."""
    desk = Desk(budget_mib=150, a=100, b=100)
    desk.leave(desk.ask("a"))
    desk.hold = {StopUnit}
    b = desk.ask("b")
    a = max(desk.kernel.state.sessions)
    desk.held.clear()
    desk.post(StopUnconfirmed(a, "survivors"))
    assert desk.reserved_mib() == 100
    assert b.state is TicketState.WAITING
    desk.wait(30)
    assert desk.reserved_mib() == 100
    assert desk.phases()["a"] in {"stopping", "stop-unconfirmed"}
    desk.post(StopConfirmed(a, "guardian"))
    desk.hold = set()
    desk.let_go()
    assert b.state is TicketState.GRANTED


def test_a_model_that_can_never_fit_evicts_nobody() -> None:
    """S-13 check 8, M-70."""
    desk = Desk(budget_mib=150, a=100, huge=900)
    desk.leave(desk.ask("a"))
    ticket = desk.ask("huge")
    assert ticket.state is TicketState.REFUSED
    assert ticket.error is not None
    assert ticket.error.code is ErrorCode.NEVER_FITS
    assert desk.phases() == {"a": "ready"}


def test_a_pinned_model_stays_and_the_other_is_told_so() -> None:
    """R-31, M-90."""
    desk = Desk(budget_mib=150, a=100, b=100)
    desk.post(inputs.PinDeployment("a", pinned=True))
    assert desk.phases() == {"a": "ready"}
    ticket = desk.ask("b")
    assert ticket.error is not None
    assert ticket.error.code is ErrorCode.BLOCKED_BY_PIN
    desk.wait(10_000)
    assert desk.phases() == {"a": "ready"}


def test_a_crash_fails_nobody_who_only_waits() -> None:
    """R-41, S-112."""
    desk = Desk(a=100)
    desk.put("a", max_in_flight=1)
    desk.ask("a")
    waiting = desk.ask("a")
    generation = max(desk.kernel.state.sessions)
    desk.post(UnitExited(generation, ExitFacts(signal=9)))
    desk.wait(5)
    assert waiting.state is TicketState.GRANTED
    assert waiting.generation != generation


def test_unload_of_a_busy_model_is_refused_unless_asked_to_drain() -> None:
    """M-87."""
    desk = Desk(a=100)
    ticket = desk.ask("a")
    with pytest.raises(StokerError, match="requests running"):
        desk.post(inputs.UnloadDeployment("a", "operator", mode="idle-only"))
    operation = desk.post(inputs.UnloadDeployment("a", "operator"))
    assert desk.phases() == {"a": "draining"}
    desk.leave(ticket)
    assert operation.state == "succeeded"
    assert desk.phases() == {}


def test_ten_callers_stop_at_once_and_share_one_end() -> None:
    """S-20, acceptance 8."""
    desk = Desk(a=100)
    desk.leave(desk.ask("a"))
    desk.hold = {StopUnit}
    operations = [desk.post(inputs.UnloadDeployment("a", "operator", mode="now")) for _ in range(10)]
    desk.hold = set()
    desk.let_go()
    assert {operation.state for operation in operations} == {"succeeded"}
    assert sum(isinstance(effect, StopUnit) for effect in desk.effects) == 1
    assert desk.names("session.ended") == ["session.ended"]


def test_changed_settings_restart_after_the_drain_and_only_then() -> None:
    """S-12."""
    desk = Desk(a=100)
    ticket = desk.ask("a")
    answer = desk.put("a", context_tokens=2048)
    assert answer["restarts"] == [ticket.generation]
    assert desk.phases() == {"a": "draining"}
    following = desk.ask("a")
    assert following.state is TicketState.WAITING
    desk.leave(ticket)
    assert following.state is TicketState.GRANTED
    assert following.generation != ticket.generation


def test_request_settings_are_adopted_without_a_restart() -> None:
    """S-12."""
    desk = Desk(a=100)
    ticket = desk.ask("a")
    desk.put("a", max_in_flight=3)
    assert desk.phases() == {"a": "ready"}
    assert desk.ask("a").generation == ticket.generation


def test_shutdown_fails_what_waits_and_drains_what_runs() -> None:
    """S-18."""
    desk = Desk(a=100)
    desk.put("a", max_in_flight=1)
    running, waiting = desk.ask("a"), desk.ask("a")
    desk.post(inputs.BeginShutdown())
    assert waiting.error is not None
    assert waiting.error.code is ErrorCode.SHUTTING_DOWN
    assert desk.phases() == {"a": "draining"}
    with pytest.raises(StokerError, match="shutting down"):
        desk.ask("a")
    desk.leave(running)
    assert desk.phases() == {}


def test_a_lowered_budget_evicts_nobody_and_blocks_grants() -> None:
    """M-33."""
    desk = Desk(budget_mib=300, a=100, b=100)
    desk.leave(desk.ask("a"))
    desk.post(inputs.SetBudget("ram", 50 << 20))
    assert desk.phases() == {"a": "ready"}
    assert desk.kernel.state.ledger.overdraft("ram") == 50 << 20
    ticket = desk.ask("b")
    assert ticket.error is not None
    assert ticket.error.code is ErrorCode.NEVER_FITS


def test_leaving_twice_is_counted_and_changes_nothing() -> None:
    """R-12."""
    desk = Desk(a=100)
    ticket = desk.ask("a")
    desk.leave(ticket)
    desk.leave(ticket)
    assert desk.kernel.state.meters.freeze().series["stoker_kernel_late_releases_total"] == {(): 1.0}
    assert desk.kernel.state.deployments["a"].in_flight == 0


def test_a_hold_whose_time_is_over_allows_one_trial_and_an_answer_ends_it() -> None:
    """S-113."""
    desk = Desk(a=100)
    desk.hold = {WatchLoad}
    for _ in range(3):
        desk.ask("a")
        crash_while_loading(desk)
        desk.held.clear()
        desk.wait(20)
    with pytest.raises(StokerError, match="failed 3 times"):
        desk.ask("a")
    desk.wait(301)
    desk.hold = set()
    ticket = desk.ask("a")
    assert ticket.state is TicketState.GRANTED
    assert desk.names("replica.") == ["replica.held", "replica.released"]
    desk.leave(ticket)
    assert [e.fields["by"] for e in desk.events if e.event == "replica.released"] == ["trial", "answer"]


def test_operations_of_an_earlier_run_are_shown_and_the_unfinished_are_interrupted() -> None:
    """C-9."""
    first = Desk(a=100)
    first.hold = {WatchLoad}
    running = first.post(inputs.LoadDeployment("a", "operator"))
    row = OperationRow(running.operation_id, "load", "a", "running", operation_fields(running), 1.0)
    second = Desk(a=100)
    second.post(inputs.OperationsRead((row,)))
    shown = second.kernel.state.operations[running.operation_id]
    assert shown.state == "failed"
    assert shown.error is not None
    assert shown.error.code is ErrorCode.INTERRUPTED


def test_three_failures_of_a_supervisor_hold_the_replica_like_failures_of_the_engine() -> None:
    """S-115."""
    desk = Desk(a=100)
    desk.hold = {WatchLoad}
    for _ in range(3):
        desk.ask("a")
        desk.post(SupervisorFailed(max(desk.kernel.state.sessions), "it broke"))
        desk.held.clear()
        desk.wait(20)
    with pytest.raises(StokerError, match="failed 3 times"):
        desk.ask("a")
    assert desk.starts() == 3
