"""BR-202 on virtual time: fifty seeds of each race, every interleaving repeatable."""

from __future__ import annotations

import pytest
import trio

from stoker.testing.fake_units import Script
from stoker.testing.simulation import Simulation

MODELS = {"a": 400, "b": 400, "c": 400}
ANSWER_S = 0.2


def one_place(seed: int) -> Simulation:
    """Room for one engine at a time; a load of 1 s."""
    return Simulation(seed=seed, models=MODELS, budget_mib=500, script=lambda _: Script(listens_after_s=0.8))


async def together(sim: Simulation, *models: str) -> float:
    """One request for each model at the same instant; the time all of them took. A client gives up after 25 s."""
    began = sim.now
    async with trio.open_nursery() as nursery:
        for model in models:
            nursery.start_soon(lambda m: sim.request(m, ANSWER_S, patience_s=25), model)
    return sim.now - began


def lives(sim: Simulation) -> list[tuple[float, str]]:
    """When engines began and ended, in order."""
    kinds = {"session.reserved": "begins", "session.ended": "ends"}
    return [(event["at"], kinds[event["event"]]) for event in sim.events if event["event"] in kinds]


def check(sim: Simulation) -> None:
    sim.check_lives()
    assert [outcome.result for outcome in sim.outcomes] == ["answered"] * len(sim.outcomes)
    alive = 0
    for _, kind in lives(sim):
        alive += 1 if kind == "begins" else -1
        assert alive <= 1, "two engines hold the one place"


@pytest.mark.seeds(50)
def test_br_202_two_waiters_for_one_idle_victim_are_both_answered(seed: int) -> None:
    """Both within 6 s, the idle model is stopped once, and the queue is empty at the end."""
    sim = one_place(seed)

    async def scenario(sim: Simulation) -> None:
        await sim.request("a", ANSWER_S)
        await trio.sleep(1)
        assert await together(sim, "b", "c") < 6
        stops = [event for event in sim.events if event["event"] == "session.stop-begun" and event["deployment"] == "a"]
        assert len(stops) == 1
        assert sim.runtime.status().waiting == 0

    sim.run(scenario)
    check(sim)


@pytest.mark.seeds(50)
def test_br_202_three_cold_requests_at_once_are_all_answered(seed: int) -> None:
    sim = one_place(seed)

    async def scenario(sim: Simulation) -> None:
        assert await together(sim, "a", "b", "c") < 9
        assert sim.runtime.status().waiting == 0

    sim.run(scenario)
    check(sim)
