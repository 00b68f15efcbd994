"""The example of docs/design/testing.md runs as it stands, and what is said of seeds is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stoker.testing.faults import CrashAt, FaultPlan, SlowStart, StopUnconfirmed
from stoker.testing.simulation import PromiseBrokenError, Simulation

PAGE = Path(__file__).parents[3] / "docs" / "design" / "testing.md"


def test_the_example_of_the_page_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})


def test_a_breach_ends_the_run_with_its_seed_even_when_somebody_catches_it() -> None:
    sim = Simulation(seed=4711, models={"a": 100}, budget_mib=1000)

    async def scenario(sim: Simulation) -> None:
        await sim.request("a")
        try:
            sim.broken("everything is wrong")
        except AssertionError:
            pass

    with pytest.raises(PromiseBrokenError, match=r"seed 4711: at \d+\.\d+ s everything is wrong") as told:
        sim.run(scenario)
    assert told.value.__notes__ == ["simulation seed 4711; to repeat it: make sim SEED=4711"]


def test_any_other_failure_names_its_seed_too() -> None:
    async def scenario(_: Simulation) -> None:
        raise ValueError("a mistake of the scenario")

    with pytest.raises(ExceptionGroup) as told:
        Simulation(seed=12, models={"a": 100}, budget_mib=1000).run(scenario)
    assert told.value.__notes__ == ["simulation seed 12; to repeat it: make sim SEED=12"]


def test_a_life_that_is_made_to_break_a_promise_is_seen() -> None:
    """The simulation can see: bytes given back behind the kernel's back are noticed in the next step."""
    sim = Simulation(seed=1, models={"a": 100}, budget_mib=1000)

    async def scenario(sim: Simulation) -> None:
        await sim.request("a")
        state = sim.runtime.kernel.state
        (generation,) = state.sessions
        state.ledger, _ = state.ledger.release(generation)
        await sim.request("a")

    with pytest.raises(PromiseBrokenError, match=r"reservations \{\} are not those of the sessions"):
        sim.run(scenario)


def test_a_fault_names_the_lives_it_means() -> None:
    sim = Simulation(seed=1, models={"a": 100, "b": 100}, budget_mib=1000)

    async def scenario(sim: Simulation) -> None:
        await sim.request("a")
        await sim.request("b")

    sim.run(scenario)
    plans = {call.argument.deployment: call.argument for call in sim.host.calls if call.name == "prepare"}  # type: ignore[attr-defined]
    script = sim.script(plans["a"])
    faults = FaultPlan((SlowStart(9.0, "a"), CrashAt(3.0, life=2), StopUnconfirmed(4)))
    assert faults.script(plans["a"], script).listens_after_s == 9.0
    assert faults.script(plans["b"], script).listens_after_s == script.listens_after_s
    assert faults.script(plans["a"], script).exits_after_s == script.exits_after_s
    assert faults.script(plans["b"], script).unconfirmed_stops == 4
