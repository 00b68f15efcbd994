"""`FakeUnits` keeps the contract of `Units`, and its scripts do what they say, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

import anyio
import pytest
import trio
import trio.testing

from stoker.domain.reconcile import IdentityVerdict
from stoker.ids import DeploymentName, Generation, Scope, unit_name
from stoker.ports.units import (
    Absent,
    Changing,
    Confirmed,
    Endpoint,
    Exited,
    Prepared,
    PrepareFailed,
    Started,
    StartFailed,
    Unconfirmed,
    UnconfirmedCause,
    UnitPlan,
)
from stoker.testing.fake_units import FakeHost, FakeUnits, Script
from stoker.testing.units_contract import CHECKS, GREETING, Behaviour, Check

SCOPE = Scope("0123abcd")
HELLO = ((0.0, "out", GREETING),)
SCRIPTS = {
    Behaviour.RUNS: Script(lines=HELLO),
    Behaviour.IGNORES_TERM: Script(lines=HELLO, obeys_term_after_s=inf),
    Behaviour.EXITS_7: Script(lines=HELLO, exits_after_s=0.2, exit_code=7),
    Behaviour.LISTENS: Script(lines=HELLO, listens_after_s=0.3),
    Behaviour.MISSING: Script(start_failures=(StartFailed("entrypoint-missing", may_exist=False),)),
}


def make_plan(generation: int, deployment: str = "d") -> UnitPlan:
    number = Generation(generation)
    return UnitPlan(
        scope=SCOPE,
        generation=number,
        name=unit_name(SCOPE, number),
        deployment=DeploymentName(deployment),
        replica=0,
        argv=("engine",),
        env={},
        files={},
        endpoint=Endpoint(),
        life_dir=f"/lives/{generation}",
        log_path=f"/logs/{generation}",
        stop_grace_s=10.0,
    )


class Rig:
    def __init__(self) -> None:
        self.host = FakeHost()
        self.units = FakeUnits(self.host, SCOPE, lambda plan: SCRIPTS[Behaviour(plan.deployment)], seed=1)

    def plan(self, generation: int, behaviour: Behaviour) -> UnitPlan:
        return make_plan(generation, behaviour)


def in_virtual_time(work: Callable[..., Awaitable[object]], *arguments: object) -> None:
    trio.run(work, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))


async def started(units: FakeUnits, generation: int) -> Started:
    answer = await units.start(Prepared(make_plan(generation)), None)
    assert isinstance(answer, Started)
    return answer


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_fake_units_keep_the_contract(check: Check) -> None:
    async def work() -> None:
        rig = Rig()
        await check(rig)
        assert rig.host.alive() == ()

    in_virtual_time(work)


def test_a_crash_at_t_is_told_at_t() -> None:
    async def work() -> None:
        units = FakeUnits(FakeHost(), SCOPE, lambda _: Script(start_delay_s=0, exits_after_s=3600, exit_signal=11))
        begun = anyio.current_time()
        unit = (await started(units, 1)).identity
        answer = await units.wait(unit)
        assert isinstance(answer, Exited)
        assert answer.exit is not None
        assert (answer.exit.signal, answer.exit.by) == (11, "engine")
        assert anyio.current_time() - begun == pytest.approx(3600)

    in_virtual_time(work)


def test_stops_stay_unconfirmed_as_often_as_scripted_and_then_succeed() -> None:
    async def work() -> None:
        host = FakeHost()
        units = FakeUnits(host, SCOPE, lambda _: Script(unconfirmed_stops=2))
        unit = (await started(units, 1)).identity
        for _ in range(2):
            answer = await units.stop(unit, 1.0)
            assert isinstance(answer, Unconfirmed)
            assert answer.cause is UnconfirmedCause.SURVIVORS
            assert [survivor.pid for survivor in answer.survivors] == [unit.main.pid]
            assert len(host.alive()) == 1
        assert isinstance(await units.stop(unit, 1.0), Confirmed)
        assert host.alive() == ()

    in_virtual_time(work)


def test_a_stop_that_never_answers_is_no_answer_at_the_bound_of_the_port() -> None:
    async def work() -> None:
        units = FakeUnits(FakeHost(), SCOPE, lambda _: Script(stop_never_answers=True))
        unit = (await started(units, 1)).identity
        begun = anyio.current_time()
        answer = await units.stop(unit, 10.0)
        assert isinstance(answer, Unconfirmed)
        assert answer.cause is UnconfirmedCause.NO_ANSWER
        assert anyio.current_time() - begun == pytest.approx(17)

    in_virtual_time(work)


def test_start_failures_come_in_order_and_then_the_start_succeeds() -> None:
    async def work() -> None:
        failures = (StartFailed("port-in-use", may_exist=False), StartFailed("no-answer", may_exist=False))
        units = FakeUnits(FakeHost(), SCOPE, lambda _: Script(start_failures=failures))
        for failure in failures:
            assert await units.start(Prepared(make_plan(1)), None) == failure
        assert isinstance(await units.start(Prepared(make_plan(1)), None), Started)

    in_virtual_time(work)


def test_a_start_without_answer_leaves_a_unit_that_may_exist() -> None:
    async def work() -> None:
        host = FakeHost()
        units = FakeUnits(host, SCOPE, lambda _: Script(start_never_answers=True))
        answer = await units.start(Prepared(make_plan(1)), None)
        assert isinstance(answer, StartFailed)
        assert (answer.kind, answer.may_exist) == ("no-answer", True)
        assert len(host.alive()) == 1

    in_virtual_time(work)


def test_a_prepare_failure_creates_nothing() -> None:
    async def work() -> None:
        host = FakeHost()
        units = FakeUnits(host, SCOPE, lambda _: Script(prepare_failure=PrepareFailed("disk-full")))
        assert await units.prepare(make_plan(1)) == PrepareFailed("disk-full")
        assert host.folders == {}

    in_virtual_time(work)


def test_a_foreign_listener_and_a_silent_engine_are_told_apart() -> None:
    async def work() -> None:
        scripts = {1: Script(foreign_listener=True), 2: Script(listens_after_s=inf)}
        units = FakeUnits(FakeHost(), SCOPE, lambda plan: scripts[plan.generation])
        foreign, silent = await started(units, 1), await started(units, 2)
        await anyio.sleep(10_000)
        assert await units.owns_listener(foreign.identity, foreign.endpoint) is False
        assert await units.owns_listener(silent.identity, silent.endpoint) is None

    in_virtual_time(work)


@pytest.mark.parametrize("obeys_after_s", [0.5, inf])
def test_the_host_outlives_its_daemon_and_the_next_one_meets_leftovers(obeys_after_s: float) -> None:
    async def work() -> None:
        host = FakeHost()
        script = Script(obeys_term_after_s=obeys_after_s)
        first = FakeUnits(host, SCOPE, lambda _: script)
        plan = make_plan(1)
        await first.prepare(plan)
        unit = (await started(first, 1)).identity
        host.kill_daemon(first)
        second = FakeUnits(host, SCOPE, lambda _: script)
        assert await second.recover(unit.generation, plan.life_dir) == unit
        assert await second.inspect(unit) == Changing("orphan-work")
        assert (await second.inspect_leftover(unit)).guardian is IdentityVerdict.SAME
        await anyio.sleep(2.001)
        assert host.alive() == ()
        assert await second.inspect(unit) == Absent()
        assert (await second.inspect_leftover(unit)).members == (IdentityVerdict.GONE,)
        assert await second.stop(unit, 5.0) == Confirmed(how="absent", exit=None, by="absent")

    in_virtual_time(work)


def test_a_dead_daemon_can_call_nothing() -> None:
    async def work() -> None:
        host = FakeHost()
        units = FakeUnits(host, SCOPE)
        host.kill_daemon(units)
        with pytest.raises(RuntimeError, match="dead"):
            await units.survey(SCOPE)

    in_virtual_time(work)


def test_every_call_is_recorded_with_its_time_and_repeats_from_its_seed() -> None:
    async def work(record: list[object]) -> None:
        host = FakeHost()
        units = FakeUnits(host, SCOPE, seed=7, jitter_s=1.0)
        unit = (await started(units, 1)).identity
        await units.stop(unit, 1.0)
        assert [(call.name, call.generation) for call in host.calls] == [("start", 1), ("stop", 1)]
        record.append(host.calls[1].at_s - host.calls[0].at_s)

    first: list[object] = []
    second: list[object] = []
    in_virtual_time(work, first)
    in_virtual_time(work, second)
    assert first == pytest.approx(second)
