"""From a unit to a ready engine, and whether it still answers (sessions, section 10, lines 28, 29, 31, 32)."""

from __future__ import annotations

import itertools
from math import inf

import pytest
import trio
from scenes import (
    calls,
    finished,
    names,
    phase_of,
    reserved_mib,
    roomy,
    session_of,
    until,
    until_phase,
)

from stoker.domain.session import Phase
from stoker.testing.fake_units import Script
from stoker.testing.simulation import Simulation

# -- readiness (lines 28, 29, 31) ----------------------------------------------------------------------------------


def test_a_list_of_models_is_no_readiness_and_no_request_comes_before_it() -> None:
    """S-100, S-108, line 28: other routes answer 200 while the readiness route answers 503."""

    async def scenario(sim: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a")
            await trio.sleep(10)
            session = session_of(sim, "a")
            assert session is not None
            assert session.endpoint is not None
            listed = await sim.http.call(session.endpoint, "GET", "/v1/models")
            health = await sim.http.call(session.endpoint, "GET", "/health")
            assert (getattr(listed, "status", None), getattr(health, "status", None)) == (200, 503)
            assert session.phase is Phase.INITIALIZING
            assert sim.upstreams.doors == {}
        (outcome,) = sim.outcomes
        (completed,) = sim.told("session.load-completed")
        assert outcome.result == "answered"
        assert outcome.waited_s >= 20
        assert completed["at"] - sim.host.wall <= outcome.granted_at

    roomy(script=lambda _: Script(listens_after_s=0.1, warms_up_s=20.0)).run(scenario)


def loads_with(*lines: tuple[float, str], **script: object) -> Simulation:
    told = tuple((at_s, "err", text) for at_s, text in lines)
    return roomy(script=lambda _: Script(listens_after_s=inf, lines=told, **script))  # type: ignore[arg-type]


async def failure_of(sim: Simulation) -> tuple[str, float]:
    """Code of the load's failure and the seconds from the first start to it."""
    ended = await finished(sim, sim.runtime.load("a"), 10_000)
    assert ended.error is not None
    (failed,) = sim.told("session.load-failed")
    return ended.error["code"], failed["at"] - sim.host.wall - calls(sim, "start")[0]


def test_a_silent_engine_fails_when_its_allowance_is_over() -> None:
    """S-102, line 29."""

    async def scenario(sim: Simulation) -> None:
        code, after_s = await failure_of(sim)
        assert code == "load-stalled"
        assert after_s == pytest.approx(60, abs=1.0)

    loads_with().run(scenario)


def test_an_advancing_engine_passes_its_allowance_and_ends_at_the_ceiling() -> None:
    """S-102, line 29."""

    async def scenario(sim: Simulation) -> None:
        code, after_s = await failure_of(sim)
        assert code == "load-timed-out"
        assert after_s == pytest.approx(3600, abs=1.0)

    lines = [(100.0 * n, f"tensor group {'abcdefghijklmnopqrstuvwxyz'[n % 26]}{'x' * n} read") for n in range(50)]
    loads_with((0.5, "reading"), (55.0, "still reading"), *lines).run(scenario)


def test_a_repeated_line_is_no_progress() -> None:
    """S-103, line 29: digits and times do not make a line new."""

    async def scenario(sim: Simulation) -> None:
        code, after_s = await failure_of(sim)
        assert code == "load-stalled"
        assert after_s == pytest.approx(50 + 180, abs=2.0)

    lines = [(20.0 * n, f"[{n}:00] waiting for gpu {n}") for n in range(100)]
    loads_with((50.0, "mapped the file"), *lines).run(scenario)


def test_a_port_retry_does_not_restart_the_deadline() -> None:
    """S-102, line 29: counted once from the first start."""
    from stoker.ports.units import StartFailed

    async def scenario(sim: Simulation) -> None:
        code, after_s = await failure_of(sim)
        assert code == "load-stalled"
        assert len(calls(sim, "start")) == 3
        assert after_s == pytest.approx(60, abs=1.0)

    taken = StartFailed("port-in-use", may_exist=False)
    loads_with(start_delay_s=8.0, start_failures=(taken, taken)).run(scenario)


def test_percent_and_stage_never_fall() -> None:
    """S-99, S-104, line 29."""

    async def scenario(sim: Simulation) -> None:
        assert (await sim.request("a")).result == "answered"
        seen = [event["percent"] or 0 for event in sim.told("session.load-progressed")]
        assert seen == sorted(seen)
        assert max(seen) == 80
        times = [event["at"] for event in sim.told("session.load-progressed")]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert min(gaps) >= 0.25 - 1e-6
        assert max(gaps) < 5.5

    steps = [5, 30, 20, 60, 10, 80, 40]
    lines = tuple((1.0 + 3 * n, "err", f"loaded {percent} %") for n, percent in enumerate(steps))
    roomy(script=lambda _: Script(listens_after_s=30.0, lines=lines)).run(scenario)


def test_a_ready_refusal_stops_the_unit_with_confirmation_and_says_the_numbers() -> None:
    """S-107, line 31: nothing was granted before the check."""
    from stoker.ports.engines import Verdict
    from stoker.testing.fake_engineering import FakeAdapter

    refusal = Verdict(
        "ready-refused", "ready-refused", "It offers 512 tokens of the planned 4096.",
        numbers={"granted_tokens": 512, "planned_tokens": 4096},
    )  # fmt: skip

    async def scenario(sim: Simulation) -> None:
        outcome = await sim.request("a")
        assert outcome.result == "ready-refused"
        assert outcome.error is not None
        assert outcome.error.details["granted_tokens"] == 512
        assert outcome.error.details["planned_tokens"] == 4096
        await until_phase(sim, "a", "gone", 20)
        (ended,) = sim.told("session.ended")
        assert ended["confirmed_by"] == "guardian"
        assert names(sim, "ticket.granted") == []
        assert sim.upstreams.doors == {}
        assert reserved_mib(sim) == 0

    roomy(adapter=FakeAdapter(judge=lambda _: refusal)).run(scenario)


# -- liveness (line 32) --------------------------------------------------------------------------------------------


def test_failures_while_bytes_arrive_do_not_count() -> None:
    """S-109, line 32."""

    async def scenario(sim: Simulation) -> None:
        outcome = await sim.request("a", 300.0, streams=True)
        assert outcome.result == "answered"
        assert sim.told("session.liveness-changed") == []

    roomy(script=lambda _: Script(deaf=((20.0, 280.0),))).run(scenario)


def test_three_failures_of_an_idle_engine_end_it_as_hung_and_the_next_request_starts_another() -> None:
    """S-110, line 32."""

    async def scenario(sim: Simulation) -> None:
        await sim.request("a")
        await trio.sleep(90)
        told = [(event["from"], event["to"], event["failures"]) for event in sim.told("session.liveness-changed")]
        assert told == [("ok", "suspect", 1), ("suspect", "degraded", 3)]
        (ended,) = sim.told("session.ended")
        assert ended["reason"] == "hung"
        assert (await sim.request("a")).result == "answered"

    roomy(script=lambda plan: Script(deaf=((20.0, inf),) if int(plan.generation) == 1 else ())).run(scenario)


def test_two_failures_are_forgiven_by_one_answer() -> None:
    """S-110."""

    async def scenario(sim: Simulation) -> None:
        await sim.request("a")
        await trio.sleep(120)
        told = [(event["from"], event["to"]) for event in sim.told("session.liveness-changed")]
        assert told == [("ok", "suspect"), ("suspect", "ok")]
        assert phase_of(sim, "a") == "ready"

    roomy(script=lambda _: Script(deaf=((19.0, 41.0),))).run(scenario)


def test_a_degraded_engine_takes_no_new_grants_and_is_ended_when_its_work_is_over() -> None:
    """S-110: in-flight work goes on; idle and degraded, it makes way for a fresh one."""

    async def scenario(sim: Simulation) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 150.0)
            await until(sim, lambda: bool(sim.told("session.liveness-changed", to="degraded")))
            nursery.start_soon(sim.request, "a")
        first, second = sim.outcomes
        assert first.result == second.result == "answered"
        assert first.generation != second.generation
        assert second.granted_at < first.ended_at + 20

    roomy(script=lambda plan: Script(deaf=((20.0, inf),) if int(plan.generation) == 1 else ())).run(scenario)


def test_an_engine_without_a_byte_for_its_hang_time_is_ended_under_its_work() -> None:
    """S-110, line 32."""

    async def scenario(sim: Simulation) -> None:
        outcome = await sim.request("a", 5_000.0)
        assert outcome.result == "session-stopped"
        await until_phase(sim, "a", "gone")
        (ended,) = sim.told("session.ended")
        assert ended["reason"] == "hung"
        assert 300 <= ended["at"] - sim.told("session.load-completed")[0]["at"] <= 380

    roomy(script=lambda _: Script(deaf=((20.0, inf),))).run(scenario)


def test_a_slow_first_token_is_never_a_hang() -> None:
    """S-110, line 32: its health route answers all the time."""

    async def scenario(sim: Simulation) -> None:
        outcome = await sim.request("a", 3_000.0)
        assert outcome.result == "answered"
        assert sim.told("session.liveness-changed") == []

    roomy().run(scenario)
