"""Puts a runtime together from its ports: the same for the daemon, the library and the simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import anyio

from stoker.domain.budget import Ledger, auto_budget_ram
from stoker.domain.deployments import DeploymentSpec
from stoker.domain.hardware import Hardware
from stoker.ids import RAM, DeploymentName, Instance, Scope
from stoker.ports.clock import Clock
from stoker.ports.devices import Devices
from stoker.ports.engines import Adapter, Installation
from stoker.ports.journal import Journal
from stoker.ports.models import Models
from stoker.ports.threads import Threads
from stoker.ports.units import Units
from stoker.ports.upstream import Probes
from stoker.runtime.bus import Bus
from stoker.runtime.census import Census
from stoker.runtime.clocks import loop_clock
from stoker.runtime.effects import Carrier
from stoker.runtime.inputs import Limits
from stoker.runtime.kernel import Kernel
from stoker.runtime.launching import Life
from stoker.runtime.logbook import Logbook
from stoker.runtime.readiness import Patience
from stoker.runtime.resolving import Resolver
from stoker.runtime.rooms import Rooms
from stoker.runtime.state import KernelState
from stoker.runtime.supervisor import Surroundings
from stoker.runtime.uses import Upstreams
from stoker.runtime.wiring import Runtime


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside. ``installations`` is asked at each resolution, so that a finder may still be at work."""

    clock: Clock
    units: Units
    journal: Journal
    models: Models
    devices: Devices
    probes: Probes
    threads: Threads
    upstreams: Upstreams
    adapters: tuple[Adapter, ...]
    installations: Callable[[], tuple[Installation, ...]]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the operator chose. ``budget``: bytes, ``"auto"``, or a share of the total such as ``"80%"`` (M-32)."""

    folders: Life
    daemon_log: str = ""
    limits: Limits = field(default_factory=Limits)
    patience: Patience = Patience()  # noqa: RUF009 - frozen
    budget: int | str = "auto"
    context_floor_tokens: int = 8192
    event_buffer: int = 4096
    subscribers: int = 64
    defaults: Callable[[str, str], DeploymentSpec] = lambda name, reference: DeploymentSpec(
        DeploymentName(name),
        reference,
    )


def assemble(
    ports: Ports, choices: Choices, *, scope: Scope, instance: Instance, version: str, hardware: Hardware
) -> Runtime:
    """A runtime that is ``starting``: nothing runs until its carrier does, and nothing is admitted until `Opened`."""
    automatic = auto_budget_ram(hardware.ram.total_bytes)
    budget = budget_bytes(choices.budget, hardware.ram.total_bytes, automatic)
    state = KernelState(
        scope, instance, version, ports.clock.wall(), Ledger({RAM: budget}), hardware, iter(()),
        automatic_budgets={RAM: automatic},
        budget_origins={RAM: "auto" if choices.budget == "auto" else "config"},
    )  # fmt: skip
    kernel = Kernel(state, ports.clock, choices.limits)
    census = Census(state)
    bus = Bus(
        instance, lambda: asdict(census.snapshot(bus.last_id)), buffer=choices.event_buffer, most=choices.subscribers
    )

    resolver = Resolver(
        ports.models, ports.adapters, ports.installations, lambda: state.hardware, choices.context_floor_tokens
    )
    carrier = Carrier(kernel, bus, ports.journal, resolver, ports.threads, ports.upstreams, loop_clock())
    rooms = Rooms(ports.devices, ports.threads, carrier.post, anyio.current_time)
    carrier.surroundings = Surroundings(
        scope, ports.units, ports.journal, ports.models, ports.probes, ports.threads, ports.upstreams, rooms,
        ports.clock, choices.folders, choices.patience, carrier.post, anyio.current_time,
    )  # fmt: skip
    logbook = Logbook(kernel, ports.journal, ports.units, choices.folders, choices.daemon_log, ports.threads)
    return Runtime(
        kernel, carrier, census, bus, ports.journal, ports.models, ports.units, logbook, ports.installations,
        choices.defaults,
    )  # fmt: skip


def budget_bytes(chosen: int | str, total_bytes: int, automatic: int) -> int:
    """The budget of a pool in bytes; shares round down."""
    if chosen == "auto":
        return automatic
    if isinstance(chosen, str):
        return int(total_bytes * float(chosen.removesuffix("%")) / 100)
    return chosen
