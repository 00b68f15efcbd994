"""Words that the simulated tests share: how to be in a phase, and what to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from stoker.domain.session import Phase
from stoker.ids import RAM
from stoker.runtime.state import Session
from stoker.runtime.views import OperationView
from stoker.testing.fake_engineering import MIB
from stoker.testing.fake_units import Script
from stoker.testing.simulation import Simulation

LOADING = ("reserved", "preparing", "starting", "initializing")
LONG_S = 8.0
SLOW: dict[str, Script] = {
    "reserved": Script(),  # kept there by `hold_back_memory`
    "preparing": Script(prepare_delay_s=LONG_S),
    "starting": Script(start_delay_s=LONG_S),
    "initializing": Script(listens_after_s=LONG_S),
}
"""Scripts whose lives spend ``LONG_S`` in one loading phase."""


def lingering_in(phase: str, **options: Any) -> Simulation:
    """A simulation whose engines linger in ``phase``; in ``reserved`` they wait for proof of memory."""
    options = {"seed": 1, "models": {"a": 400, "b": 400}, "budget_mib": 1000, **options}
    sim = Simulation(script=lambda _: SLOW[phase], **options)
    if phase == "reserved":
        hold_back_memory(sim)
    return sim


def roomy(seed: int = 1, **options: Any) -> Simulation:
    """A machine on which `a`, `b` and `c` fit together."""
    return Simulation(seed=seed, models={"a": 400, "b": 400, "c": 300}, budget_mib=1200, **options)


def hold_back_memory(sim: Simulation) -> None:
    sim.devices.free_bytes = 100 * MIB


def give_memory_back(sim: Simulation) -> None:
    sim.devices.free_bytes = sim.devices.total_bytes


def session_of(sim: Simulation, model: str) -> Session | None:
    """The one life of ``model`` that is not gone."""
    found = [s for s in sim.runtime.kernel.state.sessions.values() if s.state.deployment == model]
    assert len(found) <= 1
    return found[0] if found else None


def phase_of(sim: Simulation, model: str) -> str:
    session = session_of(sim, model)
    return "gone" if session is None else str(session.phase)


async def until(sim: Simulation, holds: Callable[[], bool], within_s: float = 600.0) -> None:
    with trio.fail_after(within_s):
        await sim.runtime.carrier.until(holds)


async def until_phase(sim: Simulation, model: str, phase: Phase | str, within_s: float = 600.0) -> None:
    await until(sim, lambda: phase_of(sim, model) == phase, within_s)


async def loaded(sim: Simulation, *models: str) -> None:
    """Each of ``models`` is ready and idle."""
    for model in models:
        sim.runtime.load(model)
        await until_phase(sim, model, Phase.READY)


async def finished(sim: Simulation, operation: OperationView, within_s: float = 600.0) -> OperationView:
    return await sim.runtime.wait_operation(operation.operation_id, within_s)  # type: ignore[arg-type]


def reserved_mib(sim: Simulation) -> int:
    return sim.runtime.kernel.state.ledger.reserved(RAM) // MIB


def calls(sim: Simulation, name: str, model: str | None = None) -> list[float]:
    """When the host was called so, about any life or about those of ``model``."""
    lives = {event["generation"] for event in sim.told("session.reserved") if model in {None, event["deployment"]}}
    return [call.at_s for call in sim.host.calls if call.name == name and (model is None or call.generation in lives)]


def names(sim: Simulation, prefix: str = "session.") -> list[str]:
    return [event["event"] for event in sim.events if event["event"].startswith(prefix)]
