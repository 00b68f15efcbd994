"""Lives on virtual time: joins, changes, cancels, and loads that meet an end (sessions, section 10, lines 4 to 7)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from scenes import (
    LOADING,
    calls,
    finished,
    give_memory_back,
    lingering_in,
    loaded,
    phase_of,
    reserved_mib,
    roomy,
    session_of,
    until_phase,
)

from stoker.domain.session import Phase
from stoker.runtime.inputs import BeginShutdown, Limits
from stoker.testing.fake_units import Script
from stoker.testing.simulation import Simulation

# -- joins and changes of settings (line 4) ------------------------------------------------------------------------


@pytest.mark.seeds(5)
def test_two_loads_of_one_key_share_one_start_and_one_generation(seed: int) -> None:
    """S-12, line 4."""

    async def scenario(sim: Simulation) -> None:
        first, second = sim.runtime.load("a"), sim.runtime.load("a")
        ends = [await finished(sim, operation) for operation in (first, second)]
        assert [end.state for end in ends] == ["succeeded", "succeeded"]
        assert len({end.result["generation"] for end in ends}) == 1
        assert sim.starts("a") == 1

    roomy(seed).run(scenario)


@pytest.mark.seeds(5)
def test_another_key_starts_only_after_the_confirmed_stop_of_the_first(seed: int) -> None:
    """S-12, line 4."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        spec = sim.runtime.kernel.state.deployments["a"].spec  # type: ignore[index]
        sim.runtime.put_deployment(replace(spec, context_tokens=2048))
        await finished(sim, sim.runtime.load("a"))
        assert sim.starts("a") == 2
        (ended,) = sim.told("session.ended", deployment="a")
        assert ended["reason"] == "config-changed"
        assert ended["confirmed_by"] == "guardian"
        assert ended["at"] - sim.host.wall < calls(sim, "start", "a")[1]

    roomy(seed).run(scenario)


def test_settings_of_the_next_request_change_nothing_of_the_life() -> None:
    """S-11, S-12, line 4: same generation, told once, and asked for again nothing happens."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        before = session_of(sim, "a")
        assert before is not None
        spec = sim.runtime.kernel.state.deployments["a"].spec  # type: ignore[index]
        changed = replace(spec, settings={"max_output_tokens": 100}, keep_alive_s=30.0)
        sim.runtime.put_deployment(changed)
        await trio.sleep(1)
        after = session_of(sim, "a")
        assert after is before
        assert after.phase is Phase.READY
        assert [event["changed"] for event in sim.told("session.settings-adopted")] == [["max_output_tokens"]]
        assert after.keep_alive_s == 30.0
        assert after.prospect is not None
        assert after.prospect.settings.max_output_tokens == 100
        sim.runtime.put_deployment(changed)
        await trio.sleep(1)
        assert len(sim.told("session.settings-adopted")) == 1
        assert (await sim.request("a")).generation == before.generation

    roomy().run(scenario)


@pytest.mark.parametrize("settings", [{"max_output_tokens": -1}, {"no_such_setting": True}])
def test_settings_that_are_not_valid_leave_the_running_session_alone(settings: dict[str, object]) -> None:
    """S-13, line 4: what runs is touched only after everything about the new load is known to be right."""

    async def scenario(sim: Simulation) -> None:
        waits = trio.Event()
        await loaded(sim, "a")
        before = session_of(sim, "a")
        spec = sim.runtime.kernel.state.deployments["a"].spec  # type: ignore[index]
        async with trio.open_nursery() as nursery:
            for _ in range(3):  # two are served, one waits for a place
                nursery.start_soon(sim.request, "a", 2.0)
            await trio.sleep(0.1)
            sim.runtime.put_deployment(replace(spec, settings=settings))
            waits.set()
        await trio.sleep(1)
        assert session_of(sim, "a") is before
        assert phase_of(sim, "a") == "ready"
        assert [outcome.result for outcome in sim.outcomes] == ["answered"] * 3

    roomy().run(scenario)


def test_an_explicit_load_of_another_key_supersedes_one_that_still_loads() -> None:
    """S-12: who only wants the model moves over, who asked for the old settings is told."""

    async def scenario(sim: Simulation) -> None:
        old = sim.runtime.load("a", settings={"task": "generate"})
        anyhow = sim.runtime.load("a")
        await until_phase(sim, "a", Phase.INITIALIZING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a")
            await trio.sleep(0.1)
            new = sim.runtime.load("a", settings={"task": "embed"})
        ended = await finished(sim, old)
        assert ended.error is not None
        assert ended.error["code"] == "load-superseded"
        for operation in (anyhow, new):
            assert (await finished(sim, operation)).result["generation"] == sim.outcomes[0].generation
        assert [outcome.result for outcome in sim.outcomes] == ["answered"]
        assert [event["by"] for event in sim.told("session.load-cancelled")] == ["superseded"]
        assert sim.starts("a") == 2

    lingering_in("initializing").run(scenario)


# -- callers come and go (line 5) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", LOADING)
@pytest.mark.seeds(2)
def test_any_of_several_callers_may_leave_a_load(seed: int, phase: str) -> None:
    """S-15, R-43, line 5: the others are answered by the one start."""

    async def scenario(sim: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: sim.request("a", patience_s=1.0))
            await until_phase(sim, "a", phase)
            for _ in range(3):
                nursery.start_soon(sim.request, "a")
            await trio.sleep(3)
            give_memory_back(sim)
        assert [outcome.result for outcome in sim.outcomes] == ["gave-up", "answered", "answered", "answered"]
        assert sim.starts("a") == 1

    lingering_in(phase, seed=seed).run(scenario)


@pytest.mark.parametrize("phase", LOADING)
@pytest.mark.parametrize("policy", ["finish", "cancel"])
def test_the_last_caller_leaves_a_load_to_the_policy(phase: str, policy: str) -> None:
    """S-16, line 5."""

    async def scenario(sim: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: sim.request("a", patience_s=2.0))
            nursery.start_soon(lambda: sim.request("a", patience_s=1.0))
            await until_phase(sim, "a", phase)
        give_memory_back(sim)
        await trio.sleep(2 * 8)
        if policy == "finish":
            assert phase_of(sim, "a") == "ready"
            assert sim.told("session.load-cancelled") == []
        else:
            assert phase_of(sim, "a") == "gone"
            assert [event["by"] for event in sim.told("session.load-cancelled")] == ["abandoned"]
            assert reserved_mib(sim) == 0

    lingering_in(phase, limits=Limits(abandoned_load=policy)).run(scenario)


def test_an_abandoned_load_is_kept_for_its_keep_alive() -> None:
    """S-16, R-43."""

    async def scenario(sim: Simulation) -> None:
        await sim.request("a", patience_s=1.0)
        await until_phase(sim, "a", Phase.READY)
        await trio.sleep(29)
        assert phase_of(sim, "a") == "ready"
        await trio.sleep(2)
        assert phase_of(sim, "a") == "gone"

    lingering_in("initializing", specs={"a": {"keep_alive_s": 30.0}}).run(scenario)


@pytest.mark.parametrize("phase", LOADING)
def test_an_abandoned_load_gives_way_in_the_step_in_which_another_ticket_needs_it(phase: str) -> None:
    """S-16, line 5."""

    async def scenario(sim: Simulation) -> None:
        await sim.request("a", patience_s=1.0)
        assert phase_of(sim, "a") == phase
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "b")
            await trio.sleep(0.5)
            (cancelled,) = sim.told("session.load-cancelled", deployment="a")
            assert cancelled["by"] == "abandoned"
            give_memory_back(sim)
        assert sim.outcomes[-1].result == "answered"

    lingering_in(phase, budget_mib=500).run(scenario)


@pytest.mark.parametrize("policy", ["finish", "cancel"])
def test_an_explicit_load_is_a_standing_want_and_no_caller_takes_it_away(policy: str) -> None:
    """S-16: a caller that came and went beside it changes nothing."""

    async def scenario(sim: Simulation) -> None:
        operation = sim.runtime.load("a")
        await sim.request("a", patience_s=1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: sim.request("b", patience_s=20.0))
            assert (await finished(sim, operation)).state == "succeeded"
        assert sim.told("session.load-cancelled") == []

    lingering_in("initializing", budget_mib=500, limits=Limits(abandoned_load=policy)).run(scenario)


# -- cancel (line 6) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", LOADING)
@pytest.mark.parametrize("hangs", [False, True])
def test_a_cancel_is_acknowledged_in_its_own_step_in_every_phase(phase: str, *, hangs: bool) -> None:
    """S-17, line 6: while a host call is pending; one outcome, nothing left."""

    async def scenario(sim: Simulation) -> None:
        operation = sim.runtime.load("a")
        await until_phase(sim, "a", phase)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a")
            await trio.sleep(0.5)
            before = sim.now
            cancelled = sim.runtime.cancel_operation(operation.operation_id)  # type: ignore[arg-type]
            assert cancelled.state == "cancelled"
            (told,) = sim.told("session.load-cancelled")
            assert told["at"] == sim.host.wall + before
        assert [outcome.result for outcome in sim.outcomes] == ["load-cancelled"]
        again = sim.runtime.cancel_operation(operation.operation_id)  # type: ignore[arg-type]
        assert again.state == "cancelled"
        sim.host.hung.clear()
        await until_phase(sim, "a", "gone", 60)
        assert reserved_mib(sim) == 0
        assert sim.host.alive() == ()
        assert sim.told("session.load-cancelled") == [told]
        assert len(sim.told("session.ended")) == 1
        assert sim.told("session.load-failed") == []

    sim = lingering_in(phase)
    if hangs:
        sim.host.hung |= {"preparing": {"prepare"}, "starting": {"start"}, "initializing": {"owns_listener"}}.get(
            phase, set()
        )
    sim.run(scenario)


def test_a_cancel_after_ready_answers_the_final_state() -> None:
    """S-17, C-9."""

    async def scenario(sim: Simulation) -> None:
        operation = sim.runtime.load("a")
        await until_phase(sim, "a", Phase.READY)
        assert sim.runtime.cancel_operation(operation.operation_id).state == "succeeded"  # type: ignore[arg-type]
        assert phase_of(sim, "a") == "ready"

    roomy().run(scenario)


# -- loads that meet an end (line 7) -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["load", "request"])
@pytest.mark.seeds(3)
def test_a_load_while_stopping_starts_after_the_end_and_as_the_same_replica(order: str, seed: int) -> None:
    """S-13 check 5, M-86, line 7: never a second copy beside it."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        sim.runtime.unload("a", mode="now")
        assert phase_of(sim, "a") == "stopping"
        if order == "load":
            assert (await finished(sim, sim.runtime.load("a"))).state == "succeeded"
        else:
            assert (await sim.request("a")).result == "answered"
        (ended,) = sim.told("session.ended")
        assert ended["at"] - sim.host.wall <= calls(sim, "prepare", "a")[1]
        assert {event["replica"] for event in sim.told("session.reserved")} == {0}

    roomy(seed, script=lambda _: Script(obeys_term_after_s=3.0)).run(scenario)


def test_cancelling_a_load_that_waits_for_an_end_ends_only_its_wait() -> None:
    """S-13 check 5, line 7."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        unload = sim.runtime.unload("a", mode="now")
        load = sim.runtime.load("a")
        await trio.sleep(0.5)
        cancelled = sim.runtime.cancel_operation(load.operation_id)  # type: ignore[arg-type]
        assert cancelled.state == "cancelled"
        assert phase_of(sim, "a") == "stopping"
        assert (await finished(sim, unload)).state == "succeeded"
        await trio.sleep(5)
        assert sim.starts("a") == 1

    roomy(script=lambda _: Script(obeys_term_after_s=3.0)).run(scenario)


def test_a_shutdown_meanwhile_gives_the_waiting_load_its_own_error() -> None:
    """S-18, line 7."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        sim.runtime.unload("a", mode="now")
        load = sim.runtime.load("a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a")
            await trio.sleep(0.5)
            sim.runtime.carrier.post(BeginShutdown())
        ended = await finished(sim, load)
        assert ended.error is not None
        assert ended.error["code"] == "shutting-down"
        assert [outcome.result for outcome in sim.outcomes] == ["shutting-down"]
        await until_phase(sim, "a", "gone")
        assert sim.starts("a") == 1

    roomy(script=lambda _: Script(obeys_term_after_s=3.0)).run(scenario)
