"""The gateway in a process of its own, as the daemon runs it: the real kernel, runtime and listener on uvloop.

Only what stands behind the kernel is played: the host whose one unit "is" the benchmark's engine, the journal, the
store. A request passes everything it passes in ``stoker serve``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from stoker.domain.context import LaunchPlan
from stoker.domain.deployments import DeploymentSpec
from stoker.engines.llama_cpp.wire import LlamaCppWire
from stoker.gateway.asgi import Gateway
from stoker.gateway.surface import GatewaySurface
from stoker.gateway.upstream import UpstreamPools
from stoker.ids import DeploymentName, Instance, Scope
from stoker.ports.engines import Accepted, Launch, Route, RoutePolicy, Site
from stoker.ports.units import Endpoint, ProcessIdentity
from stoker.ports.upstream import Reply
from stoker.runtime import inputs
from stoker.runtime.assembly import Choices, Ports, assemble
from stoker.runtime.clocks import SystemClock
from stoker.runtime.launching import Life
from stoker.runtime.threads import WorkerThreads
from stoker.runtime.wiring import Runtime
from stoker.testing.fake_engineering import FakeAdapter, FakeDevices, FakeModels, fake_installation, fake_model
from stoker.testing.fake_journal import FakeJournal
from stoker.testing.fake_units import FakeHost, FakeUnits, Script

MODEL = DeploymentName("bench")
PLACES = 1024


@dataclass(frozen=True, slots=True)
class BenchAdapter(FakeAdapter):
    """Its engine listens on a port, and is spoken to as llama.cpp's server is."""

    def launch(self, plan: LaunchPlan, site: Site) -> Launch:  # noqa: ARG002 - the port's signature
        argv = ("engine",)
        return Launch(argv, {"TOKEN": site.token or ""}, {}, Endpoint(), 10.0, argv)

    def wire(self, plan: LaunchPlan, accepted: Accepted) -> LlamaCppWire:  # type: ignore[override]  # noqa: ARG002
        return LlamaCppWire(RoutePolicy(frozenset({Route("POST", "/v1/chat/completions")})), cap=2048)


class Alive:
    """An engine that is always well."""

    async def call(self, *_: object, **__: object) -> Reply:
        return Reply(200, {}, b"{}", 1.0)


async def open_runtime(engine_port: int, pools: UpstreamPools, started: Callable[[Runtime], None]) -> None:
    """Assemble, load the one model, say so, and run until killed."""
    instance, clock, journal, devices = Instance("bench"), SystemClock(), FakeJournal(), FakeDevices()
    scope: Scope = await journal.open(instance, ProcessIdentity(1, 1, "boot"), "0", clock.wall())
    ports = Ports(
        clock=clock,
        units=FakeUnits(FakeHost(), scope, lambda _: Script(listens_after_s=0.0)),
        journal=journal,
        models=FakeModels({MODEL: fake_model(MODEL, 64)}),
        devices=devices,
        probes=Alive(),
        threads=WorkerThreads(),
        upstreams=pools,
        adapters=(BenchAdapter(),),
        installations=lambda: (fake_installation(),),
    )
    folders = Life("/lives", "/logs", "/caches", make_folder=lambda _: None, list_folders=lambda _: ())
    runtime = assemble(ports, Choices(folders), scope=scope, instance=instance, version="0", hardware=devices.read())
    async with anyio.create_task_group() as tasks:
        await tasks.start(runtime.carrier.run)
        runtime.put_deployment(
            DeploymentSpec(MODEL, MODEL, declared_bytes=64 << 20, slots=PLACES, fixed_port=engine_port, origin="file")
        )
        block = await journal.generation_block()
        runtime.carrier.post(inputs.GenerationsStored(block.start, len(block)))
        runtime.carrier.post(inputs.Opened({}))
        runtime.load(MODEL)
        await runtime.carrier.until(lambda: any(session.phase == "ready" for session in runtime.sessions()))
        surface = GatewaySurface(Gateway(runtime, pools), host="127.0.0.1", port=0)
        await tasks.start(surface.run)
        print(surface.addresses["gateway"].rpartition(":")[2], flush=True)  # whoever started this reads the port
        started(runtime)


def main(engine_port: int) -> None:
    def settle(_: Runtime) -> None:
        gc.collect()
        gc.freeze()  # as `stoker serve` does

    anyio.run(open_runtime, engine_port, UpstreamPools(), settle, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main(int(sys.argv[1]))
