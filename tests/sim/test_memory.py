"""Memory on virtual time (memory, section 12: lines 18, 35 to 41, 43, 44, 47; line 37 is `test_field_races`).

This version knows one pool of this machine, so "all pools or none" (line 38) is "all of it or nothing" here; several
pools are the ledger's own tests.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import trio
from scenes import (
    calls,
    finished,
    give_memory_back,
    hold_back_memory,
    loaded,
    phase_of,
    reserved_mib,
    session_of,
    until,
    until_phase,
)

from stoker.domain.session import Phase
from stoker.errors import StokerError
from stoker.ids import RAM, DeploymentName
from stoker.ports.units import Exit
from stoker.testing.fake_engineering import MIB
from stoker.testing.fake_units import Script
from stoker.testing.faults import StopUnconfirmed
from stoker.testing.simulation import Simulation


def one_place(seed: int = 1, **options: Any) -> Simulation:
    """Room for one of `a`, `b` and `c`."""
    return Simulation(seed=seed, models=dict.fromkeys("abc", 400), budget_mib=500, **options)


# -- budgets (line 18) ---------------------------------------------------------------------------------------------


@pytest.mark.seeds(3)
def test_a_lowered_budget_evicts_nothing_says_the_overdraft_and_blocks_loads(seed: int) -> None:
    """M-33, L-3, line 18."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a", "b")
        pool = sim.runtime.set_budget("ram", 600 * MIB)
        assert (pool.overdraft_bytes, pool.headroom_bytes) == (200 * MIB, -200 * MIB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 30.0)
            nursery.start_soon(sim.request, "b", 30.0)
            await trio.sleep(0.1)
            nursery.start_soon(sim.request, "c", 0.1)
            await trio.sleep(14)
            assert (phase_of(sim, "a"), phase_of(sim, "b"), phase_of(sim, "c")) == ("ready", "ready", "gone")
            assert sim.told("session.stop-begun") == []
            assert await_results(sim) == ["pending"] * 3
        assert await_results(sim) == ["answered"] * 3
        assert reserved_mib(sim) <= 600
        sim.runtime.set_budget("ram", None)

    Simulation(seed=seed, models={"a": 400, "b": 400, "c": 200}, budget_mib=1000).run(scenario)


def await_results(sim: Simulation) -> list[str]:
    return [outcome.result for outcome in sim.outcomes]


# -- the ledger machine (line 35) ----------------------------------------------------------------------------------


class Operator:
    """Draws every command of the ledger machine at random; refusals are fine, breaches are not."""

    def __init__(self, sim: Simulation, draw: random.Random, models: list[str]) -> None:
        self.sim, self.draw, self.models = sim, draw, models

    async def act(self, nursery: trio.Nursery) -> None:
        commands = {
            self.load: 4, self.unload: 3, self.crash: 2, self.budget: 2, self.outside: 2, self.replicas: 1,
            self.pin: 1, self.withdraw: 2, self.settings: 1,
        }  # fmt: skip
        (command,) = self.draw.choices(list(commands), list(commands.values()))
        try:
            command()
        except StokerError:
            pass
        patience_s = self.draw.choice([0.2, 5.0, 300.0])
        model, service_s = self.draw.choice(self.models), self.draw.choice([0.0, 0.3, 2.0])
        nursery.start_soon(lambda: self.sim.request(model, service_s, patience_s=patience_s))

    def load(self) -> None:
        self.sim.runtime.load(self.draw.choice(self.models))

    def unload(self) -> None:
        self.sim.runtime.unload(self.draw.choice(self.models), mode=self.draw.choice(["now", "drain", "idle-only"]))

    def crash(self) -> None:
        if alive := self.sim.host.alive():
            unit = self.draw.choice(alive)
            unit.end_by(self.sim.now, Exit(None, 9, self.draw.random() < 0.5, 0.0, "host"))

    def budget(self) -> None:
        self.sim.runtime.set_budget("ram", self.draw.choice([500, 800, 1000, 1400]) * MIB)

    def outside(self) -> None:
        devices = self.sim.devices
        devices.free_bytes = self.draw.choice([100 * MIB, 450 * MIB, devices.total_bytes, devices.total_bytes])

    def replicas(self) -> None:
        self.sim.runtime.scale(self.draw.choice(self.models), self.draw.randint(0, 3))

    def pin(self) -> None:
        self.sim.runtime.pin(self.draw.choice(self.models), pinned=self.draw.random() < 0.3)

    def withdraw(self) -> None:
        runtime = self.sim.runtime
        running = [view for view in runtime.operations() if view.state == "running"]
        if running:
            runtime.cancel_operation(self.draw.choice(running).operation_id)  # type: ignore[arg-type]
        if waiting := runtime.queue():
            runtime.cancel_ticket(self.draw.choice(waiting).ticket_id)

    def settings(self) -> None:
        spec = self.sim.runtime.kernel.state.deployments[DeploymentName(self.draw.choice(self.models))].spec
        tokens = self.draw.choice([None, 2048, 4096])
        self.sim.runtime.put_deployment(
            replace(spec, context_tokens=tokens, keep_alive_s=self.draw.choice([1.0, 60.0]))
        )


def ledger_script(seed: int) -> Any:
    def script(plan: Any) -> Script:
        life = random.Random(f"{seed}:{plan.generation}")
        return Script(
            listens_after_s=life.uniform(0.05, 3.0),
            unconfirmed_stops=life.choice([0, 0, 0, 0, 0, 1, 3]),
            exits_after_s=life.uniform(0, 20) if life.random() < 0.15 else inf,
        )

    return script


@pytest.mark.seeds(10)
def test_the_ledger_holds_under_any_commands_crashes_and_restarts(seed: int) -> None:
    """L-1 to L-3, M-72 to M-75, line 35: after every step, and every byte is back when all is gone.

    Claims end within their bounds: a ticket within its patience or its deadline and the starts it may cost (R-32).
    """
    models = {"a": 400, "b": 400, "c": 300, "d": 700}
    draw = random.Random(seed)

    async def scenario(sim: Simulation) -> None:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                operator = Operator(sim, draw, list(models))
                for _ in range(150):
                    await operator.act(nursery)
                    await trio.sleep(draw.expovariate(2.0))
                if seed % 2:
                    await sim.kill_daemon()
                    nursery.cancel_scope.cancel()
            if seed % 2:
                await trio.sleep(draw.uniform(0.0, 5.0))
                await sim.start_daemon()
        give_memory_back(sim)
        sim.runtime.set_budget("ram", None)
        for name in models:
            sim.runtime.pin(name, pinned=False)
            sim.runtime.unload(name, mode="now")
        await until(sim, lambda: not sim.runtime.kernel.state.sessions, 600)
        assert reserved_mib(sim) == 0
        assert "pending" not in await_results(sim)

    sim = Simulation(
        seed=seed, models=models, budget_mib=1000, script=ledger_script(seed), specs={"b": {"max_wait_s": 60.0}}
    )
    sim.run(scenario)
    sim.check_lives()
    for outcome in sim.outcomes:
        assert outcome.ended_at - outcome.asked_at <= 300 + 2.0


# -- claims (lines 36 and 39) --------------------------------------------------------------------------------------


def test_what_can_never_fit_evicts_nobody_and_says_the_numbers() -> None:
    """M-70, line 36: as a request and as a load, beside idle and busy ones."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 5.0)
            await trio.sleep(0.1)
            error = (await sim.request("huge")).error
            assert error is not None
            assert error.code == "never-fits"
            assert error.details["needed_bytes"] == 2000 * MIB
            assert error.details["headroom_bytes"] == 500 * MIB
            ended = await finished(sim, sim.runtime.load("huge"))
            assert ended.error is not None
            assert ended.error["code"] == "never-fits"
        await sim.request("huge")
        assert sim.told("session.stop-begun") == sim.told("session.earmarked") == sim.told("eviction.decided") == []
        assert phase_of(sim, "a") == "ready"

    Simulation(seed=1, models={"a": 400, "huge": 2000}, budget_mib=500).run(scenario)


@pytest.mark.seeds(10)
def test_freed_bytes_reach_the_claim_they_were_freed_for(seed: int) -> None:
    """M-74, line 39: small ones that come later do not eat up what a large one waits for; 60 s at most."""

    async def small_ones(sim: Simulation, stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            while not stop.is_set():
                for model in ("s", "t"):
                    nursery.start_soon(sim.request, model, 1.0)
                await trio.sleep(0.7)

    async def scenario(sim: Simulation) -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(small_ones, sim, stop)
            await trio.sleep(5)
            began = sim.now
            outcome = await sim.request("large", 1.0)
            assert outcome.result == "answered"
            assert outcome.waited_s <= 60
            others = [e for e in sim.told("session.reserved") if e["deployment"] != "large"]
            bypasses = [e for e in others if began < e["at"] - sim.host.wall < outcome.granted_at]
            assert len(bypasses) <= 4
            stop.set()
        assert set(await_results(sim)) == {"answered"}

    specs = {name: {"keep_alive_s": 0.5} for name in ("s", "t")}
    Simulation(seed=seed, models={"large": 800, "s": 300, "t": 300}, budget_mib=900, specs=specs).run(scenario)


# -- all of it or nothing (line 38) --------------------------------------------------------------------------------


def test_a_failure_at_any_call_of_a_load_leaves_a_whole_reservation_or_none() -> None:
    """M-73, line 38, promise 1: each call to the host and each write of the journal fails once."""

    async def scenario(sim: Simulation) -> None:
        assert reserved_mib(sim) == 0
        outcome = await sim.request("a", patience_s=300)
        assert outcome.result != "pending"
        sim.runtime.unload("a", mode="now")
        await until_phase(sim, "a", "gone", 300)
        assert reserved_mib(sim) == 0
        for _ in range(3):  # the failure may be of this load, and one failure holds nobody
            if (await sim.request("a", patience_s=300)).result == "answered":
                return
        sim.broken("one failure kept the model down")

    healthy = one_place()
    healthy.run(scenario)
    host_calls, writes = len(healthy.host.calls), len(healthy.journal.calls)
    assert host_calls > 8
    assert writes > 6
    for nth in range(1, host_calls + 1):
        sim = one_place()
        sim.host.breaks_at = nth
        sim.run(scenario)
        sim.check_lives()
    for nth in range(1, writes + 1):
        sim = one_place()

        async def with_a_full_disk(sim: Simulation, nth: int = nth) -> None:
            sim.journal.fail(nth)
            await scenario(sim)

        sim.run(with_a_full_disk)
        sim.check_lives()


# -- proof before a start (line 40) --------------------------------------------------------------------------------


@pytest.mark.seeds(3)
def test_memory_that_is_free_already_starts_at_once(seed: int) -> None:
    """M-76, line 40."""

    async def scenario(sim: Simulation) -> None:
        await sim.request("a")
        assert calls(sim, "start", "a")[0] <= 1.0

    one_place(seed).run(scenario)


@pytest.mark.seeds(3)
def test_memory_that_is_free_later_starts_within_a_poll(seed: int) -> None:
    """M-76, line 40."""

    async def scenario(sim: Simulation) -> None:
        hold_back_memory(sim)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a")
            await trio.sleep(7)
            assert calls(sim, "prepare") == []
            freed_at = sim.now
            give_memory_back(sim)
        assert calls(sim, "prepare")[0] - freed_at <= 0.3
        assert await_results(sim) == ["answered"]

    one_place(seed).run(scenario)


@pytest.mark.parametrize(
    ("after_our_exit", "code", "bound_s"), [(False, "outside-memory", 20), (True, "memory-not-returned", 10)]
)
def test_memory_that_is_never_free_is_refused_with_both_numbers(
    code: str, bound_s: int, *, after_our_exit: bool
) -> None:
    """M-76, line 40: nothing stays reserved, and it is no failure of the engine."""

    async def scenario(sim: Simulation) -> None:
        if after_our_exit:
            await sim.request("b")
        hold_back_memory(sim)
        outcome = await sim.request("a")
        assert outcome.result == code
        assert bound_s <= outcome.ended_at - outcome.asked_at <= bound_s + 2
        assert outcome.error is not None
        assert outcome.error.details["needed_bytes"] == 400 * MIB
        assert outcome.error.details["available_bytes"] == 100 * MIB
        assert reserved_mib(sim) == 0
        assert calls(sim, "start", "a") == []
        give_memory_back(sim)
        assert (await sim.request("a")).result == "answered"

    one_place().run(scenario)


# -- victims (line 41) ---------------------------------------------------------------------------------------------


@pytest.mark.seeds(10)
def test_busy_and_loading_ones_are_no_victims_and_answers_arrive_whole(seed: int) -> None:
    """M-82, R-28, R-30, line 41, BR-301."""

    async def scenario(sim: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 3.0)
            await until_phase(sim, "a", Phase.INITIALIZING)
            nursery.start_soon(sim.request, "b", 3.0)
            await trio.sleep(0.1)
            nursery.start_soon(sim.request, "c", 3.0)
        assert await_results(sim) == ["answered"] * 3
        assert len({outcome.generation for outcome in sim.outcomes}) == 3
        assert sim.told("session.load-cancelled") == []
        for outcome in sim.outcomes:
            assert outcome.ended_at - outcome.granted_at == pytest.approx(3.0)
        for ended in sim.told("session.ended"):
            assert ended["lifetime_ms"] >= 3000

    one_place(seed, script=lambda _: Script(listens_after_s=2.0)).run(scenario)


# -- earmarks (line 43) --------------------------------------------------------------------------------------------


@pytest.mark.seeds(5)
def test_an_earmarked_session_takes_no_new_grant_and_is_told_of_once(seed: int) -> None:
    """M-85, R-27, line 43: bounded, and its own tickets go on where room is next."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        session = session_of(sim, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 60.0)
            await trio.sleep(0.1)
            asked_at = sim.now
            nursery.start_soon(sim.request, "b", 0.1)
            await until(sim, lambda: session is not None and session.earmarked_for == "b", 30)
            assert sim.now - asked_at <= 26
            for _ in range(5):
                nursery.start_soon(sim.request, "a", 0.1)
                await trio.sleep(1)
            assert session is not None
            assert session.in_flight == 1
            assert sim.runtime.deployment("a").state == "earmarked"
        (earmarked,) = sim.told("session.earmarked")
        assert earmarked["for_deployment"] == "b"
        assert sim.told("session.earmark-lifted") == []
        assert await_results(sim) == ["answered"] * 7
        first, contender, *late = sim.outcomes
        assert contender.granted_at >= first.ended_at
        assert {outcome.generation for outcome in late}.isdisjoint({first.generation})

    one_place(seed, specs={"a": {"max_in_flight": 4}}).run(scenario)


def test_an_explicit_load_of_an_earmarked_model_makes_no_second_copy() -> None:
    """M-86."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        session = session_of(sim, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 60.0)
            await trio.sleep(0.1)
            nursery.start_soon(lambda: sim.request("d", patience_s=40.0))
            await until(sim, lambda: session is not None and session.earmarked_for == "d", 35)
            operation = sim.runtime.load("a")
            await trio.sleep(2)
            assert sim.starts("a") == 1
            ended = await finished(sim, operation, 60)  # the contender leaves, the earmark is lifted
            assert ended.state == "succeeded"
            assert session is not None
            assert ended.result["generation"] == session.generation
        assert sim.starts("a") == 1

    Simulation(seed=1, models={"a": 400, "d": 700}, budget_mib=1000).run(scenario)


# -- keep-alive (line 44) ------------------------------------------------------------------------------------------


@pytest.mark.seeds(3)
def test_keep_alive_counts_from_the_end_of_the_last_request_and_reading_is_no_use(seed: int) -> None:
    """M-91, R-48, line 44, BR-301."""

    async def scenario(sim: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 10.0)
            await trio.sleep(2)
            nursery.start_soon(sim.request, "a", 20.0)  # the later end counts, whoever came first
        last_end = sim.now
        deadline = sim.runtime.sessions()[0].idle_deadline
        assert deadline == pytest.approx(sim.host.wall + last_end + 30)
        while phase_of(sim, "a") == "ready":
            runtime = sim.runtime
            runtime.metrics(), runtime.snapshot(), runtime.status(), runtime.queue()
            shown = runtime.sessions()[0].idle_deadline
            assert shown is None or shown == pytest.approx(deadline)
            await trio.sleep(1)
        (begun,) = sim.told("session.stop-begun")
        assert begun["reason"] == "idle"
        assert begun["at"] - sim.host.wall == pytest.approx(last_end + 30, abs=0.01)

    one_place(seed, specs={"a": {"keep_alive_s": 30.0}}).run(scenario)


@pytest.mark.parametrize(("wish", "ends_after_s"), [(0.0, 0.0), (5.0, 5.0), (-1.0, inf), (None, 30.0)])
def test_a_request_may_wish_for_another_keep_alive(wish: float | None, ends_after_s: float) -> None:
    """R-48, R-49, line 44."""

    async def scenario(sim: Simulation) -> None:
        await sim.request("a", keep_alive_s=wish)
        ended_at = sim.now
        await trio.sleep(120)
        if ends_after_s == inf:
            assert phase_of(sim, "a") == "ready"
            return
        (begun,) = sim.told("session.stop-begun")
        assert begun["at"] - sim.host.wall - ended_at == pytest.approx(ends_after_s, abs=0.01)

    one_place(specs={"a": {"keep_alive_s": 30.0}}).run(scenario)


def test_a_short_wish_of_one_client_ends_nothing_that_another_still_wants() -> None:
    """R-49."""

    async def scenario(sim: Simulation) -> None:
        await sim.request("a", client="long", keep_alive_s=60.0)
        ended_at = sim.now
        await sim.request("a", client="short", keep_alive_s=0.0)
        await trio.sleep(50)
        assert phase_of(sim, "a") == "ready"
        await trio.sleep(20)
        (begun,) = sim.told("session.stop-begun")
        assert begun["at"] - sim.host.wall >= ended_at + 60

    one_place(specs={"a": {"keep_alive_s": 30.0}}).run(scenario)


# -- a day of doubt (line 47) --------------------------------------------------------------------------------------


def test_what_is_not_proven_gone_keeps_its_bytes_through_a_day() -> None:
    """S-30, M-88, promise 2, line 47: tried all day, released by confirmation only, daemon restarts included."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        sim.runtime.unload("a", mode="now")
        await until_phase(sim, "a", Phase.STOP_UNCONFIRMED)
        for _ in range(24):
            stops = len(calls(sim, "stop"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: sim.request("b", patience_s=100.0))
                await trio.sleep(3600)
            assert reserved_mib(sim) == 400
            assert phase_of(sim, "b") == "gone"
            assert 3600 // 80 - 2 <= len(calls(sim, "stop")) - stops <= 3600 // 60 + 20
        assert set(await_results(sim)) <= {"gave-up", "queue-timeout", "stop-unconfirmed"}
        (unit,) = sim.host.alive()
        unit.unconfirmed_left = 0
        await until_phase(sim, "a", "gone", 90)
        assert reserved_mib(sim) == 0
        (ended,) = sim.told("session.ended")
        assert ended["released"] == {RAM: 400 * MIB}
        assert ended["confirmed_by"] == "guardian"
        assert (await sim.request("b")).result == "answered"

    sim = one_place(faults=(StopUnconfirmed(inf, "a"),))
    sim.run(scenario, limit_s=100_000)
