"""The five promises under seeded faults: every step checked, every client answered, nothing left."""

from __future__ import annotations

import random
from math import inf

import pytest
import trio

from stoker.domain.session import Phase
from stoker.errors import StokerError
from stoker.ports.units import StartFailed, UnitPlan
from stoker.runtime import inputs
from stoker.testing.fake_units import Script
from stoker.testing.simulation import Simulation

MODELS = {"a": 400, "b": 400, "c": 300, "d": 700}


def scripts(seed: int, trouble: float) -> object:
    """One script a life, drawn from the seed and the generation alone."""

    def script(plan: UnitPlan) -> Script:
        draw = random.Random(f"{seed}:{plan.generation}")
        if draw.random() >= trouble:
            return Script(listens_after_s=draw.uniform(0.05, 1.0), start_delay_s=draw.uniform(0.0, 0.2))
        kind = draw.choice(["crash", "crash-loading", "stubborn", "unconfirmed", "port", "slow", "mute", "prepare"])
        return {
            "crash": Script(exits_after_s=draw.uniform(1.0, 20.0), exit_signal=9, exit_code=None),
            "crash-loading": Script(exits_after_s=draw.uniform(0.0, 0.4)),
            "stubborn": Script(obeys_term_after_s=inf),
            "unconfirmed": Script(unconfirmed_stops=draw.randint(1, 4)),
            "port": Script(start_failures=(StartFailed("port-in-use", may_exist=False),) * draw.randint(1, 3)),
            "slow": Script(listens_after_s=draw.uniform(6.0, 14.0)),
            "mute": Script(listens_after_s=inf, exits_after_s=15.0),
            "prepare": Script(prepare_delay_s=draw.uniform(0.5, 2.0)),
        }[kind]

    return script


async def clients(sim: Simulation, draw: random.Random, seconds: float, every_s: float) -> None:
    """Requests at random moments for random models, some of them impatient."""
    async with trio.open_nursery() as nursery:
        end = sim.now + seconds
        while sim.now < end:
            patience = draw.uniform(0.05, 3.0) if draw.random() < 0.2 else inf
            service = draw.choice([0.05, 0.3, 2.0])
            nursery.start_soon(
                lambda m, s, p: sim.request(m, s, patience_s=p), draw.choice(list(MODELS)), service, patience
            )
            await trio.sleep(draw.expovariate(1 / every_s))


async def orders(sim: Simulation, draw: random.Random, seconds: float) -> None:
    """An operator who loads, unloads, stops and pins at random; refusals are fine, breaches are not."""
    end = sim.now + seconds
    while sim.now < end:
        await trio.sleep(draw.expovariate(1 / 4.0))
        runtime = sim.runtime
        name = draw.choice(list(MODELS))
        try:
            match draw.choice(["load", "unload", "now", "idle", "pin", "unpin", "stop", "cancel"]):
                case "load":
                    runtime.load(name)
                case "unload":
                    runtime.unload(name)
                case "now":
                    runtime.unload(name, mode="now")
                case "idle":
                    runtime.unload(name, mode="idle-only")
                case "pin":
                    runtime.pin(name, pinned=True)
                case "unpin":
                    runtime.pin(name, pinned=False)
                case "stop" if runtime.sessions():
                    runtime.stop(draw.choice(runtime.sessions()).generation)
                case "cancel" if runtime.operations():
                    runtime.cancel_operation(draw.choice(runtime.operations()).operation_id)
        except StokerError:
            continue


@pytest.mark.seeds(200)
def test_every_promise_holds_under_faults_orders_and_impatient_clients(seed: int) -> None:
    """S-1, S-5, S-9, S-22 after every step (sessions, section 10, line 3), and promises 1, 2 and 4."""
    sim = Simulation(
        seed=seed, models=MODELS, budget_mib=1000, script=scripts(seed, 0.4),
        specs={"a": {"keep_alive_s": 3.0}, "b": {"max_in_flight": 1}, "c": {"max_queued": 3}},
    )  # fmt: skip
    draw = random.Random(seed)

    async def scenario(sim: Simulation) -> None:
        if seed % 3 == 0:
            sim.journal.fail(draw.randint(5, 60))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients, sim, draw, 40.0, 0.5)
            if seed % 2:
                nursery.start_soon(orders, sim, draw, 40.0)
        for name in MODELS:
            sim.runtime.pin(name, pinned=False)

    sim.run(scenario, limit_s=20_000)
    sim.check_lives()


@pytest.mark.seeds(40)
def test_a_killed_daemon_leaves_nothing_and_the_next_one_reconciles(seed: int) -> None:
    """S-98, acceptance 55: killed at a random instant, again and again."""
    sim = Simulation(seed=seed, models=MODELS, budget_mib=1000, script=scripts(seed, 0.3))
    draw = random.Random(seed)

    async def scenario(sim: Simulation) -> None:
        for _ in range(4):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clients, sim, draw, draw.uniform(0.1, 12.0), 0.3)
                await trio.sleep(draw.uniform(0.01, 8.0))
                await sim.kill_daemon()
                nursery.cancel_scope.cancel()
            await trio.sleep(5.0)
            if sim.host.alive():
                sim.broken(f"units live 5 s after the daemon's death: {sim.host.alive()}")
            await sim.start_daemon()
            state = sim.runtime.kernel.state
            if any(s.phase is not Phase.STOP_UNCONFIRMED for s in state.sessions.values()):
                sim.broken("a session other than a leftover exists at the start")
        sim.script = lambda _: Script()
        sim.runtime.load("a")  # an explicit load lifts whatever hold the faults have earned
        outcome = await sim.request("a", patience_s=600)
        if outcome.result != "answered":
            sim.broken(f"a request after the restart ended as {outcome.result}")

    sim.run(scenario, limit_s=20_000)
    sim.check_lives()


@pytest.mark.seeds(6)
def test_nobody_waits_for_ever_when_every_model_is_wanted_at_once(seed: int) -> None:
    """R-32: with healthy engines every request is answered, whatever the order."""
    sim = Simulation(seed=seed, models=MODELS, budget_mib=750, limits=inputs.Limits())
    draw = random.Random(seed)

    async def scenario(sim: Simulation) -> None:
        await clients(sim, draw, 80.0, 0.4)

    sim.run(scenario)
    sim.check_lives()
    assert {o.result for o in sim.outcomes} <= {"answered", "gave-up", "queue-full"}
    assert sum(o.result == "answered" for o in sim.outcomes) > 0.7 * len(sim.outcomes)


def test_a_failing_seed_says_so_and_repeats() -> None:
    def events(seed: int) -> list[str]:
        sim = Simulation(seed=seed, models=MODELS, budget_mib=750, script=scripts(seed, 0.5))
        sim.run(lambda s: clients(s, random.Random(seed), 20.0, 0.3))
        return [f"{event['at']:.6f} {event['event']} {event.get('generation')}" for event in sim.events]

    assert events(11) == events(11)
    assert events(11) != events(12)
