"""Where everything meets: from the configuration to a running daemon (C-43). Nothing is decided here."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from stoker import __version__
from stoker.config.deployments import implicit_spec, specs
from stoker.config.load import Flag, Loaded, Sources, load
from stoker.config.paths import Paths
from stoker.control.server import ControlSurface
from stoker.engines.finder import Configured, find_installations, run_probe
from stoker.engines.registry import load_registry
from stoker.errors import EXIT_CODES, Family
from stoker.gateway.asgi import Gateway
from stoker.gateway.settings import GatewaySettings
from stoker.gateway.surface import GatewaySurface
from stoker.gateway.upstream import UpstreamPools
from stoker.hosts.devices.cpu import CpuDevices
from stoker.hosts.probes import HttpProbes
from stoker.hosts.process.procfs import boot_id, identify
from stoker.hosts.process.units import ProcessUnits
from stoker.ids import RAM, Instance, Scope
from stoker.journal.owner import Owner, OwnerLock, ScopeLock
from stoker.journal.sqlite import SqliteJournal
from stoker.observability.logs import DaemonLog, LogPlan
from stoker.observability.scrub import Scrubber
from stoker.ports.engines import Installation, InstallationSite
from stoker.ports.units import ProcessIdentity
from stoker.runtime.assembly import Choices, Ports
from stoker.runtime.clocks import SystemClock
from stoker.runtime.daemon import Blueprint, Daemon, Lock, Surface
from stoker.runtime.effects import KernelFault
from stoker.runtime.inputs import Limits
from stoker.runtime.launching import Life
from stoker.runtime.readiness import Patience
from stoker.runtime.threads import WorkerThreads
from stoker.runtime.wiring import Runtime
from stoker.store.models import LocalModels

_log = logging.getLogger("stoker.daemon")


def serve(overrides: Mapping[str, str], *, config_file: str | None, echo: Callable[[str], None], auto: bool) -> int:
    """Run the daemon until it is told to stop; the exit code.

    ``overrides``: dotted configuration keys of flags that were given. ``auto``: `run` started it, so it leaves when
    nobody uses it (C-19). Raises `StokerError` if it cannot start.
    """
    flags = tuple(Flag(f"--{key.rpartition('.')[2]}", tuple(key.split(".")), value) for key, value in overrides.items())
    loaded = load(Sources(os.environ, config_file, flags))
    loaded.paths.prepare()
    log = DaemonLog.start(_log_plan(loaded), Scrubber())
    try:
        site = _Site(loaded, echo)
        daemon = Daemon(site.blueprint(auto=auto))
        return anyio.run(daemon.run, backend_options={"use_uvloop": sys.platform != "win32"})
    except BaseExceptionGroup as group:
        first = _first(group)
        if isinstance(first, KernelFault):
            _log.critical("kernel fault", exc_info=first)
            echo(f"Stoker stopped on a defect of its own: {first}")
            return EXIT_CODES[Family.INTERNAL]
        raise first from None
    finally:
        log.close()


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """The one failure behind task groups in task groups; a kernel fault before anything it dragged along."""
    faults, _ = group.split(KernelFault)
    found = (faults or group).exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _log_plan(loaded: Loaded) -> LogPlan:
    chosen = loaded.settings.log
    return LogPlan(chosen.level, chosen.format, loaded.paths.daemon_log, chosen.file_bytes, chosen.files)


@dataclass(slots=True)
class _Site:
    """One daemon's parts, made from its configuration."""

    loaded: Loaded
    echo: Callable[[str], None]
    pools: UpstreamPools = field(default_factory=UpstreamPools)
    installed: tuple[Installation, ...] = ()
    scope_lock: ScopeLock | None = None

    def blueprint(self, *, auto: bool) -> Blueprint:
        loaded, settings, paths = self.loaded, self.loaded.settings, self.loaded.paths
        pid = os.getpid()
        identity = identify(pid) or ProcessIdentity(pid, 0, boot_id())
        journal = SqliteJournal(paths.journal)
        registry = load_registry()

        def ports(scope: Scope) -> Ports:
            return Ports(
                clock=SystemClock(),
                units=ProcessUnits(scope),
                journal=journal,
                models=LocalModels(settings.store.extra),
                devices=CpuDevices(),
                probes=HttpProbes(),
                threads=WorkerThreads(),
                upstreams=self.pools,
                adapters=tuple(registry),
                installations=lambda: self.installed,
            )

        def find_engines() -> None:
            cache = Path(paths.installations, "probes.json")
            found = find_installations(
                registry, os.environ.get("PATH", os.defpath), run_probe, cache=cache, configured=_configured(loaded)
            )
            self.installed = tuple(one for one in found if _is_wanted(loaded, one))

        async def open_journal(instance: Instance) -> Scope:
            scope = await journal.open(instance, identity, __version__, time.time())
            self.scope_lock = ScopeLock.acquire(paths.machine_dir, scope, paths.data_dir)
            return scope

        pool = settings.pools.get(RAM)
        return Blueprint(
            choices=Choices(
                folders=_folders(paths, loaded),
                daemon_log=paths.daemon_log,
                limits=_limits(loaded),
                patience=Patience(
                    settings.sessions.load_stall_s, settings.sessions.load_ceiling_s, settings.sessions.hang_s
                ),
                budget=pool.budget_bytes if pool is not None else "auto",
                context_floor_tokens=settings.memory.context_floor_tokens,
                event_buffer=settings.events.buffer,
                subscribers=settings.events.subscribers,
                defaults=lambda name, reference: implicit_spec(loaded, name, reference),
            ),
            identity=identity,
            lock=lambda instance: _lock(paths, instance),
            ports=ports,
            open_journal=open_journal,
            find_engines=find_engines,
            specs=specs(loaded),
            surfaces=self._surfaces,
            echo=self.echo,
            idle_exit_s=settings.daemon.idle_exit_s if auto else None,
            drain_s=settings.sessions.drain_s.shutdown,
            shutdown_bound_s=settings.sessions.shutdown_bound_s,
            warnings=tuple(f"{one.source}: {one.reason}" for one in registry.broken),
        )

    def _surfaces(self, runtime: Runtime) -> Sequence[Surface]:
        chosen, paths = self.loaded.settings, self.loaded.paths
        gateway = Gateway(runtime, self.pools, gateway_settings(self.loaded))
        token = SystemClock().token(32)
        _write_token(paths.control_token, token)
        return (
            GatewaySurface(
                gateway,
                host=chosen.gateway.host,
                port=chosen.gateway.port,
                path=chosen.gateway.socket,
                allow_anonymous_network=chosen.gateway.allow_anonymous_network,
            ),
            ControlSurface(
                runtime,
                socket_path=paths.control_socket,
                tcp=chosen.control.tcp,
                token=token,
                config_view=lambda: config_view(self.loaded),
            ),
        )


def gateway_settings(loaded: Loaded) -> GatewaySettings:
    """The gateway's own record of its section."""
    chosen = loaded.settings.gateway
    return GatewaySettings(
        trusted_hosts=chosen.trusted_hosts,
        cors_origins=chosen.cors_origins,
        max_connections=chosen.max_connections,
        max_body_bytes=chosen.max_body_bytes,
        body_memory_bytes=chosen.body_memory_bytes,
        spool_bytes=chosen.spool_bytes,
        spool_dir=loaded.paths.spool,
        header_timeout_s=chosen.header_timeout_s,
        body_idle_s=chosen.body_idle_s,
        connection_idle_s=chosen.connection_idle_s,
        client_stall_s=chosen.client_stall_s,
        keepalive_after_s=chosen.keepalive_after_s,
    )


def config_view(loaded: Loaded) -> dict[str, Any]:
    """What `GET /config` and `config show` say: every effective value, with the origin of those that were given."""
    values = Scrubber().value(loaded.settings.model_dump(mode="json", by_alias=True))
    origins = {".".join(path): origin for path, origin in sorted(loaded.origins.items())}
    return {"revision": 1, "values": values, "origins": origins, "pending": [], "files": list(loaded.files)}


def _is_wanted(loaded: Loaded, one: Installation) -> bool:
    """An engine that is switched off, or that is to run elsewhere than as a process, is not installed here."""
    chosen = loaded.settings.engines.get(one.engine)
    return chosen is None or (chosen.enabled and chosen.host in {"auto", "process"})


def _configured(loaded: Loaded) -> tuple[Configured, ...]:
    """Engines an operator named by path; they come before what is found."""
    return tuple(
        Configured(engine, InstallationSite("binary", os.path.abspath(chosen.path), "configured"))
        for engine, chosen in loaded.settings.engines.items()
        if chosen.path
    )


def _limits(loaded: Loaded) -> Limits:
    sessions, queue = loaded.settings.sessions, loaded.settings.queue
    return Limits(
        max_waiting_total=queue.max_waiting_total,
        swap_bound_s=queue.swap_bound_s,
        swap_bound_factor=queue.swap_bound_factor,
        claim_wait_s=sessions.claim_wait_s,
        abandoned_load=sessions.abandoned_load,
        drain_operator_s=sessions.drain_s.operator,
        drain_change_s=sessions.drain_s.change,
    )


def _folders(paths: Paths, loaded: Loaded) -> Life:
    sessions = loaded.settings.sessions
    caches = os.path.join(paths.data_dir, "caches")
    os.makedirs(caches, mode=0o700, exist_ok=True)
    return Life(paths.lives, paths.unit_logs, caches, sessions.ports, sessions.orphan_grace_s, sessions.kill_confirm_s)


def _lock(paths: Paths, instance: Instance) -> Lock:
    return OwnerLock.acquire(paths.data_dir, Owner(instance, os.getpid(), __version__, paths.control_socket, ""))


def _write_token(path: str, token: str) -> None:
    """The control token is new at each start and lies where only this account reads it (C-45)."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token)
