"""Ends on virtual time: one teardown, what is not proven gone, and hosts that hang (sessions, 10: 8 to 13, 33, 48)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf

import pytest
import trio
from scenes import (
    calls,
    finished,
    give_memory_back,
    loaded,
    phase_of,
    reserved_mib,
    roomy,
    session_of,
    until,
    until_phase,
)

from stoker.domain.session import ExitExplained, Failure, Phase
from stoker.errors import StokerError
from stoker.ids import RAM, Generation
from stoker.ports.units import Exit
from stoker.testing.fake_engineering import MIB
from stoker.testing.fake_units import Script
from stoker.testing.faults import CrashAt, SlowStart, StopUnconfirmed
from stoker.testing.simulation import Simulation

# -- one teardown (lines 8, 10, 11) --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["now", "drain", "kill"])
def test_ten_callers_stop_at_once_and_get_one_end_in_ten_equal_answers(mode: str) -> None:
    """S-20, line 8."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        operations = [sim.runtime.unload("a", mode=mode) for _ in range(10)]
        answers = [await finished(sim, operation) for operation in operations]
        assert {answer.state for answer in answers} == {"succeeded"}
        assert len({str(answer.result) for answer in answers}) == 1
        assert len({answer.ended_at for answer in answers}) == 1
        assert len(calls(sim, "stop")) == 1
        assert len(sim.told("session.ended")) == 1

    roomy(script=lambda _: Script(obeys_term_after_s=2.0)).run(scenario)


def test_a_late_explanation_is_added_to_the_old_attempt_and_to_nothing_else() -> None:
    """S-111, line 10."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        first = session_of(sim, "a")
        assert first is not None
        old = first.generation
        await until(sim, lambda: bool(sim.told("session.crashed")))
        assert phase_of(sim, "a") == "stopping"
        events = len(sim.events)
        late = ExitExplained(old, Failure("device-lost", "The card fell off the bus."))
        sim.runtime.carrier.post(late)
        await trio.sleep(40)  # records wait for the stop before them, and that has a bound
        assert [event for event in sim.events[events:] if event["event"] != "session.stop-unconfirmed"] == []
        (attempt,) = await sim.runtime.attempts("a", None, 10)
        assert (attempt.outcome, attempt.code) == ("crashed", "device-lost")
        sim.host.hung.clear()
        await until_phase(sim, "a", "gone")
        assert (await sim.request("a")).result == "answered"
        second = session_of(sim, "a")
        assert second is not None
        state = second.state
        events = len(sim.events)
        sim.runtime.carrier.post(replace(late, failure=Failure("other", "Even later.")))
        await trio.sleep(0.5)
        assert second.state is state
        assert len(sim.events) == events
        attempts = await sim.runtime.attempts("a", None, 10)
        assert [attempt.code for attempt in attempts] == [None, "device-lost"]

    sim = roomy(faults=(CrashAt(5.0, "a", life=1),))
    sim.host.hung.add("stop")
    sim.run(scenario)


@pytest.mark.seeds(3)
def test_a_stop_that_never_answers_delays_nobody_else(seed: int) -> None:
    """S-19, S-33, line 11."""

    async def others(sim: Simulation) -> list[float]:
        """How long the first answer, ten more, a stop and a list of the other model take, again and again."""
        took = []
        for _ in range(5):
            began = sim.now
            assert (await sim.request("c", 0.0)).result == "answered"
            took.append(sim.now - began)
            began = sim.now
            for _ in range(10):
                await sim.request("c", 0.1)
            took.append(sim.now - began)
            began = sim.now
            assert (await finished(sim, sim.runtime.unload("c", mode="now"))).state == "succeeded"
            took.append(sim.now - began)
        return took

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        undisturbed = await others(sim)
        sim.runtime.unload("a", mode="now")
        disturbed = await others(sim)
        assert phase_of(sim, "a") in {"stopping", "stop-unconfirmed"}
        for before, beside in zip(undisturbed, disturbed, strict=True):
            assert abs(before - beside) < 0.3  # what the host's own jitter makes

    def script(plan: object) -> Script:
        return Script(stop_never_answers=getattr(plan, "deployment", "") == "a")

    sim = roomy(seed, script=script)

    async def then_free(sim: Simulation) -> None:
        await scenario(sim)
        end(sim)

    sim.run(then_free)


def end(sim: Simulation) -> None:
    """Whatever still runs ends by itself now, and stops answer again."""
    for unit in sim.host.alive():
        unit.script = replace(unit.script, stop_never_answers=False, unconfirmed_stops=0)
        unit.unconfirmed_left = 0
        unit.end_by(sim.now, Exit(0, None, None, sim.host.wall + sim.now, "engine"))


# -- unconfirmed stops (lines 9 and 12) ----------------------------------------------------------------------------


def stuck(seed: int = 1, **options: object) -> Simulation:
    """A machine on which nothing of `a` can be proven gone, with room for one of `a` and `b`."""
    return Simulation(
        seed=seed, models={"a": 400, "b": 400, "c": 200}, budget_mib=700, faults=(StopUnconfirmed(inf, "a"),),
        **options,  # type: ignore[arg-type]
    )  # fmt: skip


async def stuck_stop(sim: Simulation) -> Generation:
    await loaded(sim, "a")
    session = session_of(sim, "a")
    assert session is not None
    sim.runtime.unload("a", mode="now")
    await until_phase(sim, "a", Phase.STOP_UNCONFIRMED)
    return session.generation


@pytest.mark.seeds(3)
def test_an_unconfirmed_stop_holds_its_reservation_in_every_view(seed: int) -> None:
    """S-5, S-30, promise 2, line 9."""

    async def scenario(sim: Simulation) -> None:
        generation = await stuck_stop(sim)
        runtime = sim.runtime
        for _ in range(20):
            snapshot = runtime.snapshot()
            (view,) = [s for s in snapshot.sessions if s.generation == generation]
            assert view.reservation == {RAM: 400 * MIB}
            for pools in (runtime.pools(), runtime.status().pools, snapshot.pools, snapshot.status.pools):
                (pool,) = pools
                assert pool.reserved_bytes == 400 * MIB
                assert {"generation": generation, "bytes": 400 * MIB} in pool.reservations
                if view.phase == "stop-unconfirmed":
                    assert pool.unconfirmed_bytes == 400 * MIB
            assert f'stoker_pool_reserved_bytes{{pool="ram"}} {float(400 * MIB)}' in _plain(runtime.metrics())
            await trio.sleep(7)
        end(sim)

    stuck(seed).run(scenario)


def _plain(metrics: str) -> str:
    """Prometheus text with every number spelled alike."""
    lines = []
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        lines.append(line if line.startswith("#") else f"{name} {float(value)}")
    return "\n".join(lines)


@pytest.mark.seeds(3)
def test_an_unconfirmed_stop_is_tried_again_at_the_stated_times_and_a_late_exit_frees_it(seed: int) -> None:
    """S-30, line 9."""

    async def scenario(sim: Simulation) -> None:
        generation = await stuck_stop(sim)
        await trio.sleep(600)
        stops = calls(sim, "stop")
        takes_s = 10.0 + 4.0  # the grace, and the host's look after the KILL
        pauses = [later - earlier - takes_s for earlier, later in itertools.pairwise(stops)]
        nominal = [1, 2, 4, 8, 16, 32, *[60] * len(pauses)]
        assert len(pauses) > 8
        for pause, expected in zip(pauses, nominal, strict=False):
            assert 0.9 * expected <= pause <= 1.1 * expected + 0.2
        assert len(sim.told("session.stop-unconfirmed", generation=generation)) == 1
        end(sim)
        await until_phase(sim, "a", "gone", 66 + takes_s)
        (ended,) = sim.told("session.ended")
        assert (ended["reason"], ended["confirmed_by"]) == ("operator", "guardian")
        assert ended["released"] == {RAM: 400 * MIB}
        assert reserved_mib(sim) == 0

    stuck(seed).run(scenario)


@pytest.mark.parametrize("order", ["load", "request"])
def test_a_load_of_what_is_not_proven_gone_is_refused_with_numbers_after_one_retry(order: str) -> None:
    """S-13 check 5, S-31, line 9."""

    async def scenario(sim: Simulation) -> None:
        generation = await stuck_stop(sim)
        stops = len(calls(sim, "stop"))
        if order == "load":
            ended = await finished(sim, sim.runtime.load("a"))
            assert ended.error is not None
            code, message, details = (ended.error[key] for key in ("code", "message", "details"))
        else:
            error = (await sim.request("a")).error
            assert error is not None
            code, message, details = str(error.code), error.message, error.details
        assert code == "stop-unconfirmed"
        assert "0.39 GiB" in message
        assert details["generation"] == generation
        assert details["reservation"] == {RAM: 400 * MIB}
        assert details["survivors"][0]["pid"]
        assert len(calls(sim, "stop")) > stops
        assert sim.starts("a") == 1
        end(sim)

    stuck().run(scenario)


def test_another_model_waits_for_what_is_not_proven_gone_and_presses_for_it() -> None:
    """S-30 (at most every 5 s), S-31, M-88."""

    async def scenario(sim: Simulation) -> None:
        await stuck_stop(sim)
        await trio.sleep(400)  # the pauses have grown to a minute
        before = len(calls(sim, "stop"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "b")
            await trio.sleep(200)
            assert len(calls(sim, "stop")) - before >= 200 // (14 + 6)
            assert phase_of(sim, "b") == "gone"
            end(sim)
        assert sim.outcomes[-1].result == "answered"

    stuck().run(scenario)


@pytest.mark.seeds(3)
def test_memory_given_up_by_force_is_journalled_first_and_released_once(seed: int) -> None:
    """S-32, line 12."""

    async def scenario(sim: Simulation) -> None:
        runtime = sim.runtime
        generation = await stuck_stop(sim)
        with pytest.raises(StokerError, match="retry"):
            runtime.force_release(generation, by="ann")
        assert reserved_mib(sim) == 400
        await until(sim, lambda: (s := session_of(sim, "a")) is not None and s.state.failed_retries > 0)
        await until_phase(sim, "a", Phase.STOP_UNCONFIRMED)
        sim.journal.hang()
        runtime.force_release(generation, by="ann")
        await trio.sleep(1)
        assert reserved_mib(sim) == 400  # the journal has not said yes
        sim.journal.resume()
        await until_phase(sim, "a", "gone", 1)
        assert ("force-release", None) in sim.journal.verbs(generation)
        (released,) = sim.told("session.force-released")
        assert (released["by"], released["released"]) == ("ann", {RAM: 400 * MIB})
        (ended,) = sim.told("session.ended")
        assert (ended["reason"], ended["confirmed_by"]) == ("operator", "force-release")
        assert reserved_mib(sim) == 0
        assert (await sim.request("b")).result == "answered"

    async def haunted(sim: Simulation) -> None:
        await scenario(sim)
        (ghost,) = [unit for unit in sim.host.alive() if unit.plan.deployment == "a"]
        sim.devices.free_bytes -= 400 * MIB  # what it still uses
        await trio.sleep(1)
        before = len(calls(sim, "stop", "a"))
        await trio.sleep(300)
        assert 3 <= len(calls(sim, "stop", "a")) - before <= 5  # once a minute, and the host's own time
        await sim.request("b")
        (pool,) = sim.runtime.pools()
        assert pool.outside_bytes is not None
        assert pool.outside_bytes >= 399 * MIB
        assert ghost.is_alive()
        end(sim)
        give_memory_back(sim)
        await trio.sleep(120)
        assert (sim.runtime.kernel.state.ledger.reserved(RAM)) == sum(
            s.state.reservation[RAM] for s in sim.runtime.kernel.state.sessions.values()
        )
        assert len(sim.told("session.ended", deployment="a")) == 1

    stuck(seed).run(haunted)


def test_what_was_given_up_by_force_stays_given_up_after_a_restart() -> None:
    """S-94: the ghost is still chased, but its bytes are not taken back from those they were promised to."""

    async def scenario(sim: Simulation) -> None:
        generation = await stuck_stop(sim)
        await until(sim, lambda: (s := session_of(sim, "a")) is not None and s.state.failed_retries > 0)
        await until_phase(sim, "a", Phase.STOP_UNCONFIRMED)
        sim.runtime.force_release(generation, by="ann")
        await until_phase(sim, "a", "gone", 1)
        await sim.kill_daemon()
        sim.host.hung.add("inspect_leftover")
        await sim.start_daemon()
        assert reserved_mib(sim) == 0
        assert (await sim.request("b")).result == "answered"
        sim.host.hung.clear()

    stuck().run(scenario)


# -- nobody comes back (line 33) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["crash", "restart"])
def test_what_an_operator_stopped_stays_stopped(how: str) -> None:
    """S-112, line 33."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 20.0)
            await trio.sleep(0.1)
            sim.runtime.unload("a")
            assert phase_of(sim, "a") == "draining"
            if how == "restart":
                await sim.kill_daemon()
                await trio.sleep(5)
                await sim.start_daemon()
        await trio.sleep(300)
        assert phase_of(sim, "a") == "gone"
        assert sim.starts("a") == 1

    faults = (CrashAt(5.0, "a"),) if how == "crash" else ()
    roomy(faults=faults).run(scenario)


def test_a_pinned_model_that_an_operator_stopped_is_not_pulled_up_by_its_pin() -> None:
    """S-112."""

    async def scenario(sim: Simulation) -> None:
        sim.runtime.pin("a", pinned=True)
        await until_phase(sim, "a", Phase.READY)
        await finished(sim, sim.runtime.unload("a"))
        await trio.sleep(600)
        assert sim.starts("a") == 1
        assert (await sim.request("a")).result == "answered"

    roomy().run(scenario)


# -- a host that hangs (line 48) -----------------------------------------------------------------------------------


@pytest.mark.seeds(3)
def test_a_host_that_hangs_at_the_start_delays_only_its_own_leftovers(seed: int) -> None:
    """S-90, S-94, line 48: ready in time, leftovers hold exactly their rows, what fits beside them loads."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a", "b")
        await sim.kill_daemon()
        sim.host.hung |= {"inspect_leftover", "recover", "stop"}
        began = sim.now
        assert await sim.start_daemon()
        assert sim.now - began <= 20 + 5
        state = sim.runtime.kernel.state
        held = {Phase.STOP_UNCONFIRMED, Phase.STOPPING}  # on the books, and tried again in the background
        assert len(state.sessions) == 2
        assert {s.phase for s in state.sessions.values()} <= held
        assert reserved_mib(sim) == 800
        assert (await sim.request("c")).result == "answered"
        sim.host.hung.clear()
        await until(sim, lambda: not any(s.phase in held for s in state.sessions.values()), 200)
        assert (await sim.request("a")).result == "answered"

    roomy(seed).run(scenario)


@pytest.mark.seeds(5)
def test_several_leftovers_that_end_quickly_hold_the_start_up_for_none_of_its_bound(seed: int) -> None:
    """S-90: each verdict is waited for on its own."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a", "b", "c")
        await sim.kill_daemon()
        began = sim.now
        assert await sim.start_daemon()
        assert sim.now - began < 2
        assert reserved_mib(sim) == 0
        reaped = len(sim.told("unit.reaped")) + len(sim.told("unit.forgotten"))
        assert reaped == 3

    roomy(seed).run(scenario)


def test_a_host_whose_every_call_hangs_does_not_keep_the_daemon_from_opening() -> None:
    """S-90: residue and stray folders have the same bound."""

    async def scenario(sim: Simulation) -> None:
        sim.host.hung.add("remove")
        await loaded(sim, "c")
        await finished(sim, sim.runtime.unload("c", mode="now"))
        await trio.sleep(120)  # the clean-up has given up by now
        assert len(sim.journal.tables.residues) == 1
        await sim.kill_daemon()
        sim.host.hung |= {"inspect_leftover", "recover", "stop", "remove"}
        began = sim.now
        assert await sim.start_daemon()
        assert sim.now - began <= 20 + 5
        sim.host.hung.clear()

    roomy().run(scenario)


def test_a_journal_that_does_not_answer_keeps_no_stop_from_ending() -> None:
    """S-86: stopping never depends on the journal; new starts do."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        sim.journal.hang()
        sim.runtime.unload("a", mode="now")
        await until_phase(sim, "a", "gone", 30)
        assert reserved_mib(sim) == 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "b")
            await trio.sleep(20)
            assert sim.starts("b") == 0
            sim.journal.resume()
        assert sim.outcomes[-1].result == "answered"

    roomy().run(scenario)


def test_a_slow_start_and_a_crash_are_lines_of_a_fault_plan() -> None:
    """The plan reads as what it does, a life each."""

    async def scenario(sim: Simulation) -> None:
        first = await sim.request("a", 10.0)
        second = await sim.request("a", 10.0)
        assert (first.result, second.result) == ("engine-exited", "answered")
        assert first.waited_s < 1
        assert second.waited_s > 20

    roomy(faults=(CrashAt(3.0, "a", life=1), SlowStart(20.0, "a", life=2))).run(scenario)
