"""One run of the daemon on virtual time, each step of its start and stop made to fail (control 11, line 31; sessions 10,
line 13; S-18, S-90).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.abc
import pytest
import trio
from trio.testing import MockClock

from stoker.domain.deployments import DeploymentSpec
from stoker.errors import ErrorCode, StokerError, error_for
from stoker.ids import DeploymentName, Instance, Scope
from stoker.ports.units import ProcessIdentity
from stoker.runtime.assembly import Choices, Ports
from stoker.runtime.daemon import Blueprint, Daemon
from stoker.runtime.launching import Life
from stoker.testing.fake_engineering import (
    MIB,
    FakeAdapter,
    FakeDevices,
    FakeModels,
    FakeUpstreams,
    fake_installation,
    fake_model,
)
from stoker.testing.fake_journal import FakeJournal
from stoker.testing.fake_units import FakeHost, FakeUnits, Script
from stoker.testing.simulated import SimulatedClock, SimulatedHttp, at_once, deterministic

MODELS = ("a", "b", "c")
BOUND_S = 45.0


class Rig:
    """A blueprint of fakes. Every step says its name to ``done``; the one called ``failing`` raises ``error``."""

    def __init__(self, failing: str = "", script: Callable[[Any], Script] = lambda _: Script()) -> None:
        self.failing = failing
        self.seed = 0
        self.error: Exception = error_for(ErrorCode.DISK_FULL, f"The disk is full at {failing}.")
        self.done: list[str] = []
        self.said: list[str] = []
        self.host = FakeHost()
        self.journal = FakeJournal()
        self.models = FakeModels({name: fake_model(name, 100) for name in MODELS})
        self.script = script
        self.daemon = Daemon(self.blueprint())

    def step(self, name: str) -> None:
        self.done.append(name)
        if name == self.failing:
            raise self.error

    def blueprint(self) -> Blueprint:
        folders = Life("/lives", "/logs", "/caches", make_folder=lambda _: None, list_folders=lambda _: ())
        specs = [
            DeploymentSpec(DeploymentName(name), name, declared_bytes=100 * MIB, slots=2, origin="file", preload=True)
            for name in MODELS
        ]
        return Blueprint(
            Choices(folders, budget=1000 * MIB), ProcessIdentity(1, 1, "boot"), lambda _: FakeLock(self), self.ports,
            self.open_journal, lambda: self.step("find engines"), specs,
            lambda _: [FakeSurface(self, "gateway"), FakeSurface(self, "control")], self.echo,
            shutdown_bound_s=BOUND_S,
        )  # fmt: skip

    def echo(self, words: str) -> None:
        self.said.append(words)
        self.step("echo " + words.split(maxsplit=1)[0].rstrip(":"))

    async def open_journal(self, instance: Instance) -> Scope:
        self.step("open journal")
        return await self.journal.open(instance, ProcessIdentity(1, 1, "boot"), "0", 0.0)

    def ports(self, scope: Scope) -> Ports:
        self.step("ports")
        return Ports(
            clock=SimulatedClock(self.host, random.Random(1)),
            units=RigUnits(self, scope),
            journal=Noted(self, self.journal, "journal"),  # type: ignore[arg-type]
            models=Noted(self, self.models, "models"),  # type: ignore[arg-type]
            devices=Noted(self, FakeDevices(), "devices"),  # type: ignore[arg-type]
            probes=SimulatedHttp(self.host),
            threads=at_once,
            upstreams=FakeUpstreams(),
            adapters=(FakeAdapter(),),
            installations=lambda: (fake_installation(),),
        )

    def run(self, scenario: Callable[[Rig], Awaitable[None]]) -> int:
        """The exit code; ``scenario`` runs once the daemon is ready, then it is asked to stop."""

        async def beside() -> None:
            while self.daemon.runtime is None or not self.daemon.runtime.is_ready():
                await trio.sleep(0.05)
            await scenario(self)
            self.daemon.ask_to_stop()

        async def main() -> int:
            with trio.fail_after(600):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(beside)
                    code = await self.daemon.run()
                    nursery.cancel_scope.cancel()
                return code

        with deterministic(self.seed):
            return trio.run(main, clock=MockClock(autojump_threshold=0))


class Noted:
    """A port whose calls are steps."""

    def __init__(self, rig: Rig, port: Any, name: str) -> None:
        self._rig, self._port, self._name = rig, port, name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)

        def call(*arguments: Any) -> Any:
            self._rig.step(f"{self._name}.{name}")
            return found(*arguments)

        return call


class RigUnits(FakeUnits):
    def __init__(self, rig: Rig, scope: Scope) -> None:
        super().__init__(rig.host, scope, rig.script)
        self._rig = rig

    async def __aexit__(self, *_: object) -> None:
        self._rig.step("units left")


class FakeLock:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        rig.step("lock")
        self.state = ""

    def update(self, **changes: str) -> None:
        self._rig.step("lock " + changes.get("state", ""))

    def release(self) -> None:
        self._rig.step("lock released")


class FakeSurface:
    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self._name, self._over = rig, name, trio.Event()
        self.addresses = {name: "nowhere"}

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        self._rig.step(f"{self._name} up")
        task_status.started()
        await self._over.wait()

    async def stop(self) -> None:
        self._over.set()
        self._rig.step(f"{self._name} down")


async def all_are_up(rig: Rig) -> None:
    runtime = rig.daemon.runtime
    assert runtime is not None
    await runtime.carrier.until(lambda: [view.phase for view in runtime.sessions()] == ["ready"] * len(MODELS))


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def test_a_run_takes_its_steps_in_order_and_gives_the_lock_back_last() -> None:
    """C-42, C-43, S-18."""
    rig = Rig()
    assert rig.run(all_are_up) == 0
    start = ["lock", "open journal", "ports", "devices.read", "gateway up", "control up", "find engines"]
    assert [step for step in rig.done if step in start] == start + ["devices.read"] * rig.done[6:].count("devices.read")
    stop = ["lock stopping", "gateway down", "control down", "units left", "journal.close", "lock released"]
    assert [step for step in rig.done if step in stop] == stop
    assert rig.host.alive() == ()
    assert rig.done[-1] == "lock released"


START = [
    "lock", "open journal", "ports", "devices.read", "gateway up", "control up", "find engines", "models.list",
    "journal.operations", "journal.holds", "journal.open_lives", "journal.residues", "journal.generation_block",
]  # fmt: skip


@pytest.mark.parametrize("failing", START)
def test_a_start_that_fails_at_any_step_says_why_and_leaves_nothing(failing: str) -> None:
    """Line 31: its one error comes out, the lock is free again, the journal closed, nothing runs."""
    rig = Rig(failing)

    async def never(_: Rig) -> None:
        raise AssertionError("it became ready")

    with pytest.raises((StokerError, BaseExceptionGroup)) as told:
        rig.run(never)
    assert leaves(told.value) == [rig.error]
    assert rig.host.alive() == ()
    if failing != "lock":
        assert rig.done[-1] == "lock released"
    if rig.done.index(failing) > rig.done.index("ports" if "ports" in rig.done else failing):
        assert "journal.close" in rig.done


STOP = ["lock stopping", "echo Stopping", "gateway down", "control down", "units left", "journal.close"]


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
@pytest.mark.parametrize("failing", STOP)
def test_a_step_of_the_stop_that_fails_skips_none_of_the_others(failing: str, kind: type[Exception]) -> None:
    """S-18, line 31: every session is stopped with confirmation and the lock is given back last."""
    rig = Rig()
    rig.error = kind("it broke")

    async def then_break(rig: Rig) -> None:
        await all_are_up(rig)
        rig.failing = failing

    assert rig.run(then_break) == 0
    for step in ("gateway down", "control down", "units left", "journal.close"):
        assert step in rig.done
    assert rig.done[-1] == "lock released"
    assert rig.host.alive() == ()
    assert all(row.phase == "gone" for row in rig.journal.tables.sessions.values())
    if failing != "echo Stopping":
        assert any("it broke" in words for words in rig.said)


def test_a_step_that_raises_and_a_unit_that_hangs_keep_the_bound_and_stop_the_rest() -> None:
    """S-18, sessions line 13: exit 7, and the one that is left is named."""
    rig = Rig(script=lambda plan: Script(stop_never_answers=plan.deployment == "b"))
    rig.error = RuntimeError("it broke")
    began = 0.0

    async def then_break(rig: Rig) -> None:
        nonlocal began
        await all_are_up(rig)
        rig.failing = "gateway down"
        began = trio.current_time()

    ended = 0.0
    left: list[str] = []

    class Timed(FakeLock):
        def release(self) -> None:
            nonlocal ended
            ended = trio.current_time()
            left.extend(unit.plan.deployment for unit in rig.host.alive())
            super().release()

    from dataclasses import replace

    rig.daemon = Daemon(replace(rig.blueprint(), lock=lambda _: Timed(rig)))
    assert rig.run(then_break) == 7
    assert ended - began <= 60
    assert left == ["b"]
    assert any("b (generation" in words and "not confirmed" in words for words in rig.said)
    assert "control down" in rig.done
    assert rig.done[-1] == "lock released"


def test_a_second_signal_skips_the_drain() -> None:
    """S-18."""
    import os
    import signal

    from stoker.ids import RequestId
    from stoker.runtime.tickets import Ask

    rig = Rig()
    took = 0.0

    async def busy(rig: Rig) -> None:
        await all_are_up(rig)
        runtime = rig.daemon.runtime
        assert runtime is not None
        runtime.ask(Ask(RequestId("r"), DeploymentName("a")), lambda _: None)
        nonlocal took
        took = trio.current_time()
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep(1)
        assert [view.phase for view in runtime.sessions()] == ["draining"]
        os.kill(os.getpid(), signal.SIGTERM)
        await runtime.carrier.until(lambda: not runtime.sessions())
        took = trio.current_time() - took

    assert rig.run(busy) == 0
    assert took < 3
