"""``kill -9`` of the daemon at every await (sessions, section 10, line 55; S-98; promises 1 to 4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from scenes import finished, loaded, until_phase

from stoker.domain.session import Phase
from stoker.testing.fake_units import Script
from stoker.testing.faults import CrashAt, DaemonKilled, JournalWriteFails, SlowStart, StopIgnored, StopUnconfirmed
from stoker.testing.simulation import Simulation

SEEDS = 50
PARTS = 8
ORPHAN_S = 5.0  # S-98: no engine of a dead daemon outlives this, process form

Act = Callable[[Simulation], Awaitable[object]]


async def nothing(_: Simulation) -> None:
    return None


async def load(sim: Simulation) -> None:
    await sim.request("a", 0.05)


async def a_is_ready(sim: Simulation) -> None:
    await loaded(sim, "a")


async def swap(sim: Simulation) -> None:
    await sim.request("b", 0.05)
    await until_phase(sim, "b", Phase.READY)


async def unload(sim: Simulation) -> None:
    await finished(sim, sim.runtime.unload("a"))


async def both_are_up_and_the_daemon_is_dead(sim: Simulation) -> None:
    """Two leftovers of the worst kind: one still starting, one that does not obey."""
    await loaded(sim, "c")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sim.request, "a")
        await until_phase(sim, "a", Phase.STARTING)
        await sim.kill_daemon()


async def reconcile(sim: Simulation) -> None:
    await sim.start_daemon()


SCENES: dict[str, tuple[Act, Act]] = {
    "load": (nothing, load),
    "swap": (a_is_ready, swap),
    "unload": (a_is_ready, unload),
    "reconcile": (both_are_up_and_the_daemon_is_dead, reconcile),
}


def script(plan: object) -> Script:
    """Quick, so that the awaits are those of the work and not of the waiting; `c` ignores TERM."""
    stubborn = getattr(plan, "deployment", "") == "c"
    return Script(listens_after_s=0.02, warms_up_s=0.01, obeys_term_after_s=30.0 if stubborn else 0.02)


def killed_at(scene: str, step: int | None) -> int:
    """Run ``scene`` and kill its daemon right before its ``step``-th step; the steps it took."""
    prepare, act = SCENES[scene]
    taken = 0

    async def scenario(sim: Simulation) -> None:
        nonlocal taken
        await prepare(sim)
        steps = sim.kill_at_step(step)
        if scene == "reconcile":
            await sim.start_daemon()
        else:
            await sim.while_alive(lambda: act(sim))
        taken = steps.taken
        sim.forget_steps()
        if sim.is_up:
            assert step is None or taken < step
            return
        await trio.sleep(ORPHAN_S)
        if sim.host.alive():
            sim.broken(f"{len(sim.host.alive())} units live {ORPHAN_S:.0f} s after the daemon's death")
        assert await sim.start_daemon()
        for model in ("a", "b"):
            outcome = await sim.request(model, 0.05, patience_s=60)
            if outcome.result != "answered":
                sim.broken(f"a request after the restart ended as {outcome.result}")

    seed = (step or 0) % SEEDS
    sim = Simulation(seed=seed, models={"a": 400, "b": 400, "c": 100}, budget_mib=600, script=script)
    sim.run(scenario)
    sim.check_lives()
    return taken


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("scene", list(SCENES))
def test_a_daemon_killed_at_any_await_leaves_nothing_and_the_next_one_serves(scene: str, part: int) -> None:
    """Line 55: every step of the scene in turn, over fifty seeds; the parts share the steps among them."""
    steps = killed_at(scene, None)
    assert steps > 20
    for step in range(1 + part, steps + 1, PARTS):
        killed_at(scene, step)


@pytest.mark.seeds(6)
def test_a_fault_plan_of_everything_keeps_the_promises(seed: int) -> None:
    """The faults of the public plan together, with a daemon that is killed twice."""

    async def scenario(sim: Simulation) -> None:
        for _ in range(40):
            for model in ("a", "b"):
                await sim.request(model, 0.2, patience_s=20)
                await trio.sleep(0.3)
        await trio.sleep(60)  # the restarts of the plan are over
        assert "answered" in {outcome.result for outcome in sim.outcomes}

    faults = (
        SlowStart(3.0, "b"), CrashAt(2.0, "a", life=2), StopIgnored("b"), StopUnconfirmed(2, "a", life=1),
        JournalWriteFails(15 + seed), DaemonKilled(at_s=7.0 + 0.13 * seed), DaemonKilled(at_s=40.0, down_s=1.0),
    )  # fmt: skip
    sim = Simulation(seed=seed, models={"a": 400, "b": 400}, budget_mib=600, faults=faults)
    sim.run(scenario)
    sim.check_lives()
