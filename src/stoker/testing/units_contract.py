"""The contract of `Units`: checks that every implementation passes (S-25 to S-28, S-41).

An implementation brings a `UnitsRig`: its `Units` and plans for a few behaviours. The checks need no test framework;
``CHECKS`` is what a test module runs, one by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

import anyio

from stoker.ids import Generation
from stoker.ports.units import (
    Absent,
    Confirmed,
    Endpoint,
    Exited,
    Kept,
    Prepared,
    Removed,
    Running,
    Started,
    StartFailed,
    UnitIdentity,
    UnitPlan,
    Units,
)

GREETING = "ready to be looked at"
BOUND_S = 20.0


class Behaviour(StrEnum):
    """What the unit of a plan does. All print ``GREETING`` first."""

    RUNS = "runs"
    IGNORES_TERM = "ignores-term"
    EXITS_7 = "exits-7"
    LISTENS = "listens"
    MISSING = "missing"


class UnitsRig(Protocol):
    """What an implementation brings."""

    units: Units

    def plan(self, generation: int, behaviour: Behaviour) -> UnitPlan: ...


Check = Callable[[UnitsRig], Awaitable[None]]


async def _started(rig: UnitsRig, generation: int, behaviour: Behaviour) -> Started:
    prepared = await rig.units.prepare(rig.plan(generation, behaviour))
    assert isinstance(prepared, Prepared), prepared
    started = await rig.units.start(prepared, None)
    assert isinstance(started, Started), started
    assert started.identity.generation == generation
    return started


async def _greeting(rig: UnitsRig, unit: UnitIdentity) -> int:
    async for line in rig.units.logs(unit):
        if line.text == GREETING:
            return line.cursor
    raise AssertionError("the log ended without the greeting")


async def _confirmed(rig: UnitsRig, unit: UnitIdentity, grace_s: float) -> Confirmed:
    answer = await rig.units.stop(unit, grace_s)
    assert isinstance(answer, Confirmed), answer
    return answer


async def prepare_is_idempotent_and_creates_no_unit(rig: UnitsRig) -> None:
    plan = rig.plan(1, Behaviour.RUNS)
    for _ in range(2):
        assert isinstance(await rig.units.prepare(plan), Prepared)
    unit = UnitIdentity(plan.generation, rig.units.kind, life_dir=plan.life_dir)
    assert await rig.units.inspect(unit) == Absent()
    assert await rig.units.survey(plan.scope) == ()
    assert await rig.units.remove(unit) == Removed()
    assert await rig.units.remove(unit) == Absent()


async def a_started_unit_runs_until_it_is_stopped(rig: UnitsRig) -> None:
    unit = (await _started(rig, 2, Behaviour.RUNS)).identity
    assert await rig.units.inspect(unit) == Running()
    await _greeting(rig, unit)
    confirmed = await _confirmed(rig, unit, 5.0)
    assert confirmed.exit is not None
    assert confirmed.exit.by == "us"
    assert await rig.units.inspect(unit) == Exited(confirmed.exit)
    assert await rig.units.wait(unit) == Exited(confirmed.exit)


async def an_exit_of_its_own_is_told_to_who_waits(rig: UnitsRig) -> None:
    unit = (await _started(rig, 3, Behaviour.EXITS_7)).identity
    answer = await rig.units.wait(unit)
    assert isinstance(answer, Exited), answer
    assert answer.exit is not None
    assert (answer.exit.code, answer.exit.signal, answer.exit.by) == (7, None, "engine")
    assert (await _confirmed(rig, unit, 1.0)).exit == answer.exit


async def a_stop_is_safe_when_repeated_and_when_shared(rig: UnitsRig) -> None:
    unit = (await _started(rig, 4, Behaviour.RUNS)).identity
    await _greeting(rig, unit)
    answers: list[Confirmed] = []

    async def one() -> None:
        answers.append(await _confirmed(rig, unit, 5.0))

    async with anyio.create_task_group() as callers:
        for _ in range(10):
            callers.start_soon(one)
    assert answers == [await _confirmed(rig, unit, 5.0)] * 10


async def term_ignored_ends_in_kill_after_the_grace(rig: UnitsRig) -> None:
    unit = (await _started(rig, 5, Behaviour.IGNORES_TERM)).identity
    await _greeting(rig, unit)
    begun = anyio.current_time()
    exit_ = (await _confirmed(rig, unit, 0.5)).exit
    assert anyio.current_time() - begun >= 0.5
    assert exit_ is not None
    assert (exit_.code, exit_.signal, exit_.by) == (None, 9, "us")


async def remove_refuses_what_is_not_confirmed(rig: UnitsRig) -> None:
    unit = (await _started(rig, 6, Behaviour.RUNS)).identity
    assert isinstance(await rig.units.remove(unit), Kept)
    assert await rig.units.inspect(unit) == Running()
    await _confirmed(rig, unit, 5.0)
    assert await rig.units.remove(unit) == Removed()
    assert await rig.units.remove(unit) == Absent()
    assert await rig.units.inspect(unit) == Absent()


async def an_unknown_unit_is_absent_and_its_stop_confirmed(rig: UnitsRig) -> None:
    unit = UnitIdentity(Generation(77), rig.units.kind)
    assert await rig.units.inspect(unit) == Absent()
    assert await rig.units.wait(unit) == Absent()
    assert await _confirmed(rig, unit, 0.0) == Confirmed(how="absent", exit=None, by="absent")
    assert await rig.units.usage(unit) is None


async def logs_resume_by_cursor_and_end_with_the_unit(rig: UnitsRig) -> None:
    unit = (await _started(rig, 7, Behaviour.RUNS)).identity
    cursor = await _greeting(rig, unit)
    await _confirmed(rig, unit, 5.0)
    assert [line async for line in rig.units.logs(unit, cursor)] == []
    assert [line.text async for line in rig.units.logs(unit, cursor - 1)] == [GREETING]


async def the_survey_finds_what_runs_and_only_that_scope(rig: UnitsRig) -> None:
    started = await _started(rig, 8, Behaviour.RUNS)
    await _greeting(rig, started.identity)
    scope = rig.plan(8, Behaviour.RUNS).scope
    (found,) = await rig.units.survey(scope)
    assert (found.generation, found.scope) == (8, scope)
    assert await rig.units.survey(type(scope)("ffffffff")) == ()
    await _confirmed(rig, started.identity, 5.0)
    assert await rig.units.survey(scope) == ()


async def a_listener_counts_only_once_it_is_there(rig: UnitsRig) -> None:
    quiet = await _started(rig, 9, Behaviour.RUNS)
    assert await rig.units.owns_listener(quiet.identity, Endpoint(port=9)) is None
    started = await _started(rig, 10, Behaviour.LISTENS)
    assert started.endpoint.port > 0
    with anyio.fail_after(BOUND_S):
        while await rig.units.owns_listener(started.identity, started.endpoint) is None:  # noqa: ASYNC110 - no push
            await anyio.sleep(0.01)
    assert await rig.units.owns_listener(started.identity, started.endpoint) is True
    for unit in (quiet.identity, started.identity):
        await _confirmed(rig, unit, 5.0)
    assert await rig.units.owns_listener(started.identity, started.endpoint) is None


async def usage_is_measured_while_it_lives(rig: UnitsRig) -> None:
    unit = (await _started(rig, 11, Behaviour.RUNS)).identity
    await _greeting(rig, unit)
    usage = await rig.units.usage(unit)
    assert usage is not None
    assert usage.anonymous_bytes > 0
    assert usage.members == (unit.main,)
    await _confirmed(rig, unit, 5.0)
    assert await rig.units.usage(unit) is None


async def a_recorded_identity_is_recovered_from_the_life_directory(rig: UnitsRig) -> None:
    unit = (await _started(rig, 12, Behaviour.RUNS)).identity
    assert unit.life_dir is not None
    assert await rig.units.recover(unit.generation, unit.life_dir) == unit
    assert await rig.units.recover(Generation(13), unit.life_dir) is None
    await _confirmed(rig, unit, 5.0)


async def a_start_that_cannot_be_says_why_and_that_nothing_exists(rig: UnitsRig) -> None:
    prepared = await rig.units.prepare(rig.plan(14, Behaviour.MISSING))
    assert isinstance(prepared, Prepared), prepared
    failed = await rig.units.start(prepared, None)
    assert isinstance(failed, StartFailed), failed
    assert (failed.kind, failed.may_exist) == ("entrypoint-missing", False)
    unit = UnitIdentity(Generation(14), rig.units.kind, life_dir=prepared.plan.life_dir)
    assert await rig.units.inspect(unit) == Absent()
    assert isinstance(await rig.units.stop(unit, 0.0), Confirmed)


async def a_second_start_of_a_living_generation_is_a_wrong_argument(rig: UnitsRig) -> None:
    unit = (await _started(rig, 15, Behaviour.RUNS)).identity
    try:
        await rig.units.start(Prepared(replace(rig.plan(15, Behaviour.RUNS))), None)
    except ValueError:
        await _confirmed(rig, unit, 5.0)
    else:
        raise AssertionError("two units for one generation")


CHECKS: tuple[Check, ...] = (
    prepare_is_idempotent_and_creates_no_unit,
    a_started_unit_runs_until_it_is_stopped,
    an_exit_of_its_own_is_told_to_who_waits,
    a_stop_is_safe_when_repeated_and_when_shared,
    term_ignored_ends_in_kill_after_the_grace,
    remove_refuses_what_is_not_confirmed,
    an_unknown_unit_is_absent_and_its_stop_confirmed,
    logs_resume_by_cursor_and_end_with_the_unit,
    the_survey_finds_what_runs_and_only_that_scope,
    a_listener_counts_only_once_it_is_there,
    usage_is_measured_while_it_lives,
    a_recorded_identity_is_recovered_from_the_life_directory,
    a_start_that_cannot_be_says_why_and_that_nothing_exists,
    a_second_start_of_a_living_generation_is_a_wrong_argument,
)
