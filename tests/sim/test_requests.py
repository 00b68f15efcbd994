"""Tickets, grants and swaps on virtual time (requests, section 15: lines 1, 2, 11, 12, 13, 15, 17, 18, 21, 22, 23)."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from math import inf

import pytest
import trio
from scenes import loaded, session_of, until, until_phase

from stoker.domain.session import Phase
from stoker.errors import StokerError
from stoker.ids import DeploymentName, RequestId
from stoker.runtime.inputs import Limits
from stoker.runtime.tickets import Ask, End, Ticket, TicketState
from stoker.testing.fake_units import Script
from stoker.testing.faults import CrashAt
from stoker.testing.simulation import Simulation

SWAP_S = 15.0  # `swap_bound_s`, the least bound of a swap


def put(sim: Simulation, model: str, **changes: object) -> None:
    """Change keys of a deployment live."""
    spec = sim.runtime.kernel.state.deployments[DeploymentName(model)].spec
    sim.runtime.put_deployment(replace(spec, **changes))  # type: ignore[arg-type]


def in_flight(sim: Simulation, model: str) -> int:
    return sim.runtime.deployment(model).in_flight


async def stream(sim: Simulation, model: str, stop: trio.Event, service_s: float = 0.5, clients: int = 3) -> None:
    """An endless stream: so many clients who ask again as soon as they are answered."""

    async def client() -> None:
        while not stop.is_set():
            await sim.request(model, service_s)

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(client)


# -- counts (lines 1 and 2) ----------------------------------------------------------------------------------------


@pytest.mark.seeds(2)
def test_a_thousand_arrivals_cancels_crashes_and_limit_changes_keep_every_count(seed: int) -> None:
    """R-11 to R-15, line 1: the counts hold after each step (`Promises`), and all are zero at the end."""
    draw = random.Random(seed)
    models = ["a", "b", "c"]

    async def limits(sim: Simulation) -> None:
        while True:
            await trio.sleep(draw.expovariate(1.0))
            put(sim, draw.choice(models), max_in_flight=draw.choice([None, 1, 2, 5]), max_queued=draw.randint(0, 20))

    async def cancels(sim: Simulation) -> None:
        while True:
            await trio.sleep(draw.expovariate(2.0))
            with suppress(StokerError):  # there may be no such ticket any more
                sim.runtime.cancel_ticket(f"req_{draw.randint(1, 1000)}")

    async def scenario(sim: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limits, sim)
            nursery.start_soon(cancels, sim)
            async with trio.open_nursery() as clients:
                for _ in range(1000):
                    patience_s = draw.expovariate(0.3) if draw.random() < 0.3 else inf
                    service_s = draw.choice([0.0, 0.1, 0.4])
                    clients.start_soon(
                        lambda m, s, p: sim.request(m, s, patience_s=p), draw.choice(models), service_s, patience_s
                    )
                    await trio.sleep(draw.expovariate(12.0))
            nursery.cancel_scope.cancel()
        status = sim.runtime.status()
        assert (status.open, status.waiting, status.in_flight) == (0, 0, 0)
        assert all(view.in_flight == view.waiting == 0 for view in sim.runtime.deployments())
        assert "pending" not in {outcome.result for outcome in sim.outcomes}

    def script(plan: object) -> Script:
        life = random.Random(f"{seed}:{getattr(plan, 'generation', 0)}")
        return Script(exits_after_s=life.uniform(2, 30) if life.random() < 0.3 else inf)

    sim = Simulation(
        seed=seed, models={"a": 400, "b": 400, "c": 300}, budget_mib=900, script=script, specs={"a": {"replicas": 2}}
    )
    sim.run(scenario)
    sim.check_lives()


class Client:
    """A gateway task as R-11 has it: the kernel owns the grant until the task has taken it, then its `finally`."""

    def __init__(self, sim: Simulation, service_s: float) -> None:
        self.sim, self.service_s = sim, service_s
        self.ticket: Ticket | None = None
        self.woken = trio.Event()
        self.served = False
        self.scope = trio.CancelScope()

    async def run(self, number: int) -> None:
        runtime = self.sim.runtime
        with self.scope:
            ticket = self.ticket = runtime.ask(
                Ask(RequestId(f"req_{number}"), DeploymentName("a")), lambda _: self.woken.set()
            )
            try:
                while ticket.state is TicketState.WAITING:
                    await self.woken.wait()
                await trio.lowlevel.checkpoint()  # between the grant and the take-over
                await trio.sleep(self.service_s)
                self.served = True
            finally:
                runtime.leave(ticket, End.COMPLETE if self.served else End.CLIENT_GONE)


def cancelled_at(step: int | None, seed: int) -> tuple[int, list[Client]]:
    """Three clients for one place; the second is cancelled right before the ``step``-th step after it asked."""
    clients: list[Client] = []
    taken = 0

    async def scenario(sim: Simulation) -> None:
        nonlocal taken
        await loaded(sim, "a")
        clients.extend(Client(sim, 0.05) for _ in range(3))
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(clients):
                nursery.start_soon(client.run, number)
            steps = sim.at_step(step, clients[1].scope.cancel)
            await until(sim, lambda: all(c.ticket is not None and c.ticket.ended_at is not None for c in clients), 60)
            taken = steps.taken
            sim.forget_steps()
        assert in_flight(sim, "a") == 0
        session = session_of(sim, "a")
        assert session is not None
        assert session.grants == {}

    sim = Simulation(seed=seed, models={"a": 400}, budget_mib=1000, specs={"a": {"max_in_flight": 1}})
    sim.run(scenario)
    return taken, clients


def test_a_cancellation_at_any_await_loses_and_doubles_no_place() -> None:
    """R-11, R-13, line 2: every step enumerated; the others are served, whatever the second had in hand."""
    steps, _ = cancelled_at(None, seed=0)
    assert steps > 20
    ended = set()
    for step in range(1, steps + 1):
        _, (first, second, third) = cancelled_at(step, seed=0)
        assert first.served
        assert third.served
        if second.ticket is not None:
            ended.add((second.ticket.state, second.served))
    assert ended == {
        (TicketState.CANCELLED, False), (TicketState.RELEASED, False), (TicketState.RELEASED, True),
    }  # fmt: skip


# -- swaps (lines 11, 12, 13, 15) ----------------------------------------------------------------------------------


@pytest.mark.seeds(5)
def test_a_cold_model_is_served_under_an_endless_stream_to_another_and_then_that_one_again(seed: int) -> None:
    """R-27, R-29, line 11, BR-704: within W, and what in-flight work takes to finish."""

    async def scenario(sim: Simulation) -> None:
        stop = trio.Event()
        await sim.request("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream, sim, "a", stop)
            await trio.sleep(20)
            outcome = await sim.request("b")
            swap_s = 1.0 + 5.0 + 400 * 2**20 / 1e9  # the estimate of S for what was never loaded
            assert outcome.waited_s <= max(SWAP_S, 4 * swap_s) + 0.5 + 1.0
            answered = sum(o.result == "answered" for o in sim.outcomes if o.model == "a")
            await trio.sleep(30)
            assert sum(o.result == "answered" for o in sim.outcomes if o.model == "a") > answered + 20
            stop.set()
        assert {o.result for o in sim.outcomes} == {"answered"}

    sim = Simulation(seed=seed, models={"a": 400, "b": 400}, budget_mib=500)
    sim.run(scenario)


@pytest.mark.seeds(10)
def test_ten_requests_for_one_model_and_one_for_another_cost_two_swaps_at_most(seed: int) -> None:
    """R-27, R-28, line 12, BR-704."""

    async def scenario(sim: Simulation) -> None:
        order = ["a"] * 5 + ["b"] + ["a"] * 5
        async with trio.open_nursery() as nursery:
            for model in order:
                nursery.start_soon(sim.request, model, 1.0)
                await trio.sleep(0.01)
        assert {outcome.result for outcome in sim.outcomes} == {"answered"}
        assert len(sim.told("eviction.decided")) <= 2

    Simulation(seed=seed, models={"a": 400, "b": 400}, budget_mib=500).run(scenario)


@pytest.mark.seeds(2)
def test_three_models_that_contend_without_end_spend_a_third_of_the_time_swapping_at_most(seed: int) -> None:
    """R-27 to R-29, line 13: and each ticket is granted within (k + 1) W and the work it waits for."""
    seconds = 250.0

    async def scenario(sim: Simulation) -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            for model in ("a", "b", "c"):
                nursery.start_soon(stream, sim, model, stop)
            await trio.sleep(seconds)
            stop.set()
        swapping_s, ready_at = 0.0, None
        for event in sim.events:
            if event["event"] == "session.load-completed":
                swapping_s += event["at"] - (ready_at or event["at"])
            elif event["event"] == "session.stop-begun" and event["at"] < sim.host.wall + seconds:
                ready_at = event["at"]
        assert swapping_s / seconds <= 0.35
        load_s = max(event["elapsed_ms"] for event in sim.told("session.load-completed")) / 1000
        bound_s = max(SWAP_S, 4 * (1.0 + load_s))
        waits = [outcome.waited_s for outcome in sim.outcomes if outcome.result == "answered"]
        assert max(waits) <= 3 * (bound_s + 0.5 + load_s + 1)
        assert {outcome.result for outcome in sim.outcomes} == {"answered"}

    sim = Simulation(
        seed=seed, models=dict.fromkeys("abc", 400), budget_mib=500, script=lambda _: Script(listens_after_s=2.0)
    )
    sim.run(scenario)


@pytest.mark.seeds(3)
def test_an_earmark_is_lifted_in_the_step_in_which_its_contender_leaves(seed: int) -> None:
    """R-30, line 15: the same life goes on, and who waited for it is granted in that step."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        generation = session_of(sim, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 120.0)  # keeps it busy past any bound
            await trio.sleep(0.1)
            nursery.start_soon(lambda: sim.request("b", patience_s=60.0))
            await until(sim, lambda: bool(sim.told("session.earmarked")), 60)
            nursery.start_soon(sim.request, "a")
            await trio.sleep(1)
            assert [view.blocked_by for view in sim.runtime.queue() if view.deployment == "a"] == ["earmark"]
            await until(sim, lambda: bool(sim.told("session.earmark-lifted")), 60)
        (lifted,) = sim.told("session.earmark-lifted")
        busy, contender, waiting = sim.outcomes
        assert contender.result == "gave-up"
        assert lifted["at"] == pytest.approx(sim.host.wall + contender.ended_at)
        assert waiting.granted_at == pytest.approx(contender.ended_at)
        assert busy.generation == waiting.generation
        assert session_of(sim, "a") is generation

    Simulation(seed=seed, models={"a": 400, "b": 400}, budget_mib=500).run(scenario)


# -- nothing is forgotten (line 17) --------------------------------------------------------------------------------


@pytest.mark.seeds(5)
def test_a_lost_wake_up_is_made_good_by_the_net_within_a_second_and_counted(seed: int) -> None:
    """R-33, line 17: the defect is put in on purpose, once."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        kernel = sim.runtime.kernel
        assert sim.promises is not None
        sim.promises.has_injected_defect = True
        freed = kernel.intake.place_freed

        def lost(*_: object) -> None:
            kernel.intake.place_freed = freed  # type: ignore[method-assign]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 1.0)
            await trio.sleep(0.1)
            nursery.start_soon(sim.request, "a", 1.0)
            await trio.sleep(0.1)
            kernel.intake.place_freed = lost  # type: ignore[method-assign]
        first, second = sim.outcomes
        assert second.result == "answered"
        assert first.ended_at < second.granted_at <= first.ended_at + 1.001
        assert "stoker_kernel_missed_wakeups_total 1.0" in sim.runtime.metrics()

    Simulation(seed=seed, models={"a": 400}, budget_mib=1000, specs={"a": {"max_in_flight": 1}}).run(scenario)


@pytest.mark.seeds(3)
def test_a_ticket_that_is_stuck_past_its_bound_is_told_of_and_recovers(seed: int) -> None:
    """R-33, line 17: what it waits for is no work in flight, so it is a stall; `/readyz` says so after a minute."""

    async def scenario(sim: Simulation) -> None:
        await sim.request("a")
        sim.host.hung.add("stop")  # the memory of `a` does not come back
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "b")
            await until(sim, lambda: bool(sim.told("queue.stalled")), 300)
            (stalled,) = sim.told("queue.stalled")
            assert stalled["deployment"] == "b"
            assert stalled["blocked_by"] == "memory"
            assert "stoker_queue_stalled 1.0" in sim.runtime.metrics()
            assert sim.runtime.health()["ready"] is True
            await trio.sleep(61)
            assert sim.runtime.health()["ready"] is False
            sim.host.hung.clear()
        assert sim.outcomes[-1].result == "answered"
        assert len(sim.told("queue.stalled")) == 1
        (recovered,) = sim.told("queue.recovered")
        assert recovered["stalled_ms"] >= 61_000
        assert sim.runtime.health()["ready"] is True

    Simulation(seed=seed, models={"a": 400, "b": 400}, budget_mib=500).run(scenario)


# -- live limits (line 18) -----------------------------------------------------------------------------------------


@pytest.mark.seeds(5)
def test_lowered_limits_cut_nothing_and_raised_ones_grant_in_the_same_step(seed: int) -> None:
    """R-36, line 18."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(sim.request, "a", 4.0)
            await trio.sleep(1)
            assert (in_flight(sim, "a"), sim.runtime.deployment("a").waiting) == (4, 6)
            put(sim, "a", max_in_flight=2, max_queued=1)
            assert (in_flight(sim, "a"), sim.runtime.deployment("a").waiting) == (4, 6)  # nothing cut or refused
            late = await sim.request("a")  # judged by the new numbers
            assert late.result == "queue-full"
            assert late.error is not None
            assert late.error.details["value"] == 1
            await until(sim, lambda: in_flight(sim, "a") < 4)
            await trio.sleep(1)
            assert in_flight(sim, "a") <= 2
            put(sim, "a", max_in_flight=6)
            assert in_flight(sim, "a") == 6
        assert [o.result for o in sim.outcomes].count("answered") == 10

    Simulation(seed=seed, models={"a": 400}, budget_mib=1000, specs={"a": {"max_in_flight": 4}}).run(scenario)


@pytest.mark.seeds(3)
def test_limits_survive_engine_errors_and_new_lives(seed: int) -> None:
    """R-15, R-36, line 18."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        put(sim, "a", max_in_flight=3)
        for _ in range(2):  # the first life dies under them
            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(sim.request, "a", 5.0)
                await trio.sleep(4)
                assert in_flight(sim, "a") == 3
        view = sim.runtime.deployment("a")
        assert (view.spec["max_in_flight"], view.places) == (3, 3)
        results = [outcome.result for outcome in sim.outcomes]
        assert set(results) <= {"answered", "engine-exited"}
        assert results.count("engine-exited") == 3

    faults = (CrashAt(6.0, "a", life=1),)
    Simulation(seed=seed, models={"a": 400}, budget_mib=1000, faults=faults).run(scenario)


@pytest.mark.seeds(3)
def test_waits_changed_live_count_for_who_comes_after(seed: int) -> None:
    """R-22, R-36."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 30.0)
            await trio.sleep(0.1)
            nursery.start_soon(sim.request, "a", 0.1)
            await trio.sleep(0.1)
            put(sim, "a", max_wait_s=5.0)
            nursery.start_soon(sim.request, "a", 0.1)
        assert [outcome.result for outcome in sim.outcomes] == ["answered", "answered", "queue-timeout"]
        assert sim.outcomes[2].ended_at - sim.outcomes[2].asked_at == pytest.approx(5.0, abs=0.01)

    Simulation(seed=seed, models={"a": 400}, budget_mib=1000, specs={"a": {"max_in_flight": 1}}).run(scenario)


# -- replicas and loads (lines 21, 22, 23) -------------------------------------------------------------------------


@pytest.mark.seeds(3)
@pytest.mark.parametrize("how", ["scale", "settings", "unload"])
def test_draining_a_replica_under_load_loses_no_request(seed: int, how: str) -> None:
    """R-41, M-94, line 21."""

    async def scenario(sim: Simulation) -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: stream(sim, "a", stop, clients=8))
            await until(sim, lambda: len(sim.told("session.load-completed")) == 2, 60)
            await trio.sleep(5)
            match how:
                case "scale":
                    sim.runtime.scale("a", 1)
                case "settings":
                    put(sim, "a", context_tokens=2048)
                case _:
                    sim.runtime.unload("a", replica=1)
            await trio.sleep(20)
            stop.set()
        assert {outcome.result for outcome in sim.outcomes} == {"answered"}
        assert sim.told("session.ended")
        if how == "scale":
            assert {event["replica"] for event in sim.told("session.ended")} == {1}
            assert len(sim.runtime.sessions()) == 1

    Simulation(seed=seed, models={"a": 400}, budget_mib=1000, specs={"a": {"replicas": 2}}).run(scenario)


@pytest.mark.seeds(20)
def test_any_subset_of_a_loads_waiters_may_leave_at_any_time(seed: int) -> None:
    """R-43, S-15, line 22: one start, and who stays is served."""
    draw = random.Random(seed)

    async def scenario(sim: Simulation) -> None:
        patience = [draw.uniform(0.0, 6.0) if draw.random() < 0.6 else inf for _ in range(8)]
        async with trio.open_nursery() as nursery:
            for patience_s in patience:
                nursery.start_soon(lambda p: sim.request("a", 0.0, patience_s=p), patience_s)
                await trio.sleep(draw.uniform(0, 0.5))
        await until_phase(sim, "a", Phase.READY)
        assert sim.starts("a") == 1
        for outcome, patience_s in zip(sim.outcomes, patience, strict=True):
            if patience_s == inf:
                assert outcome.result == "answered"

    Simulation(seed=seed, models={"a": 400}, budget_mib=1000, script=lambda _: Script(listens_after_s=4.0)).run(
        scenario
    )


@pytest.mark.seeds(5)
def test_a_failed_start_reaches_every_waiter_within_two_seconds_and_starts_are_bounded(seed: int) -> None:
    """R-44, S-113, S-117, line 23, BR-201."""

    async def scenario(sim: Simulation) -> None:
        for _ in range(6):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(sim.request, "a")
        waited = [outcome for outcome in sim.outcomes if outcome.result != "crash-loop-held"]
        assert {outcome.result for outcome in waited} == {"engine-exited"}
        exits = [event["at"] - sim.host.wall for event in sim.told("session.load-failed")]
        for outcome in waited:
            assert min(abs(outcome.ended_at - at) for at in exits) <= 2.0
        for failed in sim.told("session.load-failed"):
            assert failed["exit"]["code"] == 1
        assert sim.starts("a") == 3
        held = sim.outcomes[-1].error
        assert held is not None
        assert held.code == "crash-loop-held"
        assert held.retry_after_s
        assert "status 1" in held.message
        await until_phase(sim, "a", "gone", 5)

    Simulation(
        seed=seed, models={"a": 400}, budget_mib=1000, script=lambda _: Script(exits_after_s=0.5, listens_after_s=9.0)
    ).run(scenario)


# -- places given back late (R-45) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", ["nothing", "drain", "shutdown", "delete"])
def test_an_answer_still_loading_gives_the_ticket_its_old_rank_once(meanwhile: str) -> None:
    """R-45: and it never waits for a life, a daemon or a model that is on its way out."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        runtime = sim.runtime
        woken: list[str] = []
        first = runtime.ask(Ask(RequestId("req_x"), DeploymentName("a")), lambda t: woken.append(str(t.state)))
        assert first.state is TicketState.GRANTED
        match meanwhile:
            case "drain":
                runtime.unload("a")
            case "shutdown":
                from stoker.runtime.inputs import BeginShutdown

                runtime.carrier.post(BeginShutdown())
            case "delete":
                sim.runtime.put_deployment(
                    replace(runtime.kernel.state.deployments[DeploymentName("a")].spec, origin="control")
                )
                runtime.delete_deployment("a")
            case _:
                pass
        began = sim.now
        runtime.requeue(first)
        await until(sim, lambda: first.state is not TicketState.WAITING, 20)
        assert sim.now - began < 5
        expected = {"nothing": "granted", "drain": "granted", "shutdown": "refused", "delete": "refused"}
        assert str(first.state) == expected[meanwhile]
        assert first.requeued
        runtime.requeue(first)
        assert str(first.state) == expected[meanwhile]
        runtime.leave(first, End.COMPLETE)
        if meanwhile == "drain":
            assert len(sim.told("session.load-completed")) == 2  # a ticket that waits is a want
        await trio.sleep(1)

    Simulation(seed=1, models={"a": 400}, budget_mib=1000, limits=Limits()).run(scenario)
