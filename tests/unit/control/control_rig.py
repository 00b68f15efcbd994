"""The control API over the real kernel, on fakes: engines that start in hundredths of a second, no process, no file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import anyio
import httpx2

from stoker.control.app import create_app
from stoker.control.auth import PEER_UID
from stoker.domain.deployments import DeploymentSpec
from stoker.ids import DeploymentName, Instance, RequestId
from stoker.ports.units import ProcessIdentity, UnitPlan
from stoker.ports.upstream import NoReply, Reply
from stoker.runtime import inputs
from stoker.runtime.assembly import Choices, Ports, assemble
from stoker.runtime.launching import Life
from stoker.runtime.tickets import Ask, Ticket
from stoker.runtime.wiring import Runtime
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

TOKEN = "control-token-for-tests"
CONFIG = {"revision": 1, "values": {"control": {"tcp": ""}}, "origins": {"control.tcp": "flag:--tcp"}, "pending": []}


class _Clock:
    def wall(self) -> float:
        return 1_800_000_000.25 + anyio.current_time()

    def token(self, bytes_: int = 16) -> str:
        return "e" * bytes_ * 2

    def jitter(self) -> float:
        return 0.5


@dataclass
class _Probes:
    """An engine answers once its unit listens; ``holds`` keeps every load where it is."""

    host: FakeHost
    holds: bool = False

    async def call(self, endpoint: Any, method: str, path: str, **_: Any) -> Reply | NoReply:
        await anyio.sleep(0.001)
        listening = [unit for unit in self.host.alive() if endpoint.socket == f"{unit.plan.life_dir}/e.sock"]
        return Reply(200, {}, b"{}", 1.0) if listening and not self.holds else NoReply("refused")


async def _at_once(act: Callable[..., Any], *arguments: object) -> Any:
    await anyio.lowlevel.checkpoint()
    return act(*arguments)


@dataclass
class Rig:
    runtime: Runtime
    host: FakeHost
    probes: _Probes
    app: Any = None
    woken: list[Ticket] = field(default_factory=list)
    _asked: int = 0

    @asynccontextmanager
    async def client(self, *, uid: int | None = None, **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
        """A caller with the control token, or with ``uid`` one that comes over the Unix socket."""

        async def with_peer(scope: Any, receive: Any, send: Any) -> None:
            await self.app({**scope, "state": {PEER_UID: uid}}, receive, send)

        shown = {"authorization": f"Bearer {TOKEN}"} if uid is None else {}
        transport = httpx2.ASGITransport(app=self.app if uid is None else with_peer)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost:5152", headers={**shown, **headers}
        ) as client:
            yield client

    def ask(self, name: str, **more: Any) -> Ticket:
        self._asked += 1
        return self.runtime.ask(Ask(RequestId(f"req_{self._asked}"), DeploymentName(name), **more), self.woken.append)

    async def until(self, condition: Callable[[], bool], what: str = "the condition") -> None:
        with anyio.fail_after(10):
            while not condition():
                await anyio.sleep(0.005)
        assert condition(), what

    async def load(self, name: str) -> int:
        """Make ``name`` ready; its generation."""
        self.runtime.load(name)
        await self.until(lambda: self.phase(name) == "ready", f"{name} ready")
        return next(s.generation for s in self.runtime.sessions() if s.deployment == name)

    def phase(self, name: str) -> str | None:
        return next((s.phase for s in self.runtime.sessions() if s.deployment == name), None)

    def state(self) -> dict[str, Any]:
        """Everything that is so, for comparing before and after; without what the clock alone changes."""
        seen = asdict(self.runtime.snapshot())
        seen.pop("at")
        for each in (*seen["queue"], *seen["sessions"]):
            for name in ("waited_ms", "queued_at", "deadline", "since", "idle_deadline"):
                each.pop(name, None)
        return seen


_descriptions: list[dict[str, Any]] = []


def _described(app: Any) -> dict[str, Any]:
    """The description is the same for every application and slow to make."""
    if not _descriptions:
        _descriptions.append(app.openapi())
    return _descriptions[0]


@asynccontextmanager
async def running(
    *,
    budget_mib: int = 1000,
    script: Callable[[UnitPlan], Script] = lambda _: Script(listens_after_s=0.0),
    opened: bool = True,
    make_app: bool = True,
    event_buffer: int = 4096,
    folders: str = "",
    specs: dict[str, dict[str, Any]] | None = None,
    **models_mib: int,
) -> AsyncIterator[Rig]:
    host = FakeHost()
    journal = FakeJournal(delay_s=0.0)
    instance = Instance("i1")
    scope = await journal.open(instance, ProcessIdentity(1, 1, "boot"), "0", 0.0)
    probes = _Probes(host)
    names = {name: name for name in models_mib}
    ports = Ports(
        clock=_Clock(),
        units=FakeUnits(host, scope, script, seed=1),
        journal=journal,
        models=FakeModels({name: fake_model(name, mib) for name, mib in models_mib.items()}),
        devices=FakeDevices(),
        probes=probes,
        threads=_at_once,
        upstreams=FakeUpstreams(),
        adapters=(FakeAdapter(),),
        installations=lambda: (fake_installation(),),
    )
    life = Life(f"{folders}/lives", f"{folders}/logs", f"{folders}/caches", f"{folders}/slots")
    choices = Choices(life, daemon_log=f"{folders}/daemon.log", budget=budget_mib * MIB, event_buffer=event_buffer)
    runtime = assemble(ports, choices, scope=scope, instance=instance, version="0", hardware=ports.devices.read())
    rig = Rig(runtime, host, probes)
    if make_app:
        rig.app = create_app(runtime, config_view=lambda: CONFIG, token=TOKEN)
        schema = _described(rig.app)
        rig.app.openapi = lambda: schema
    async with anyio.create_task_group() as tasks:
        await tasks.start(runtime.carrier.run)
        block = await journal.generation_block()
        runtime.carrier.post(inputs.GenerationsStored(block.start, len(block)))
        if opened:
            runtime.carrier.post(inputs.Opened())
        for name in names:
            more = {"slots": 1, "origin": "file", **(specs or {}).get(name, {})}
            runtime.put_deployment(
                DeploymentSpec(DeploymentName(name), name, declared_bytes=models_mib[name] * MIB, **more)
            )
        yield rig
        runtime.bus.close()
        tasks.cancel_scope.cancel()


def problem(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of ``answer``, checked for its shape (C-11)."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    members: dict[str, Any] = answer.json()
    assert members["code"] == code, members
    assert members["status"] == status
    assert members["message"][-1] in ".?"
    assert members["type"] == f"errors#{code}"
    assert members["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    return members


def events_of(text: str) -> list[dict[str, Any]]:
    """Server-sent events as their data, checked against their own id and event lines."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if not lines:
            continue
        data = json.loads(lines["data"])
        assert data["id"] == lines["id"]
        assert data["event"] == lines["event"]
        found.append(data)
    return found
