"""One run of Stoker: from the owner lock to the last confirmed stop (C-42, C-43, S-18, S-90).

Start: lock, journal, devices, listeners, engines and models found, reconcile, open. Stop: nothing new, drain, stop,
journal closed, lock released last. Every step of the stop is isolated: one that fails never skips the rest.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.abc

from stoker import __version__
from stoker.domain.deployments import DeploymentSpec
from stoker.domain.session import Phase
from stoker.errors import EXIT_CODES, Family, StokerError
from stoker.ids import Instance, Scope
from stoker.ports.units import ProcessIdentity
from stoker.runtime import inputs
from stoker.runtime.assembly import Choices, Ports, assemble
from stoker.runtime.reconciler import Reconciler
from stoker.runtime.state import Session
from stoker.runtime.wiring import Runtime

_LINGER_S = 0.2
_IDLE_LOOK_S = 5.0
_PRUNE_EVERY_S = 3600.0


class Surface(Protocol):
    """A listener of the daemon: gateway or control API. Bound before it runs, so that early callers queue."""

    @property
    def addresses(self) -> dict[str, str]: ...
    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Serve; report started when connections are taken; return after `stop`."""
        ...

    async def stop(self) -> None: ...


class Lock(Protocol):
    """The owner lock of the data folder, held for life (S-89)."""

    def update(self, **changes: str) -> None: ...
    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Blueprint:
    """How this daemon is to be built. ``echo`` says words to whoever started it.

    ``ports`` is called once the scope is known. ``idle_exit_s`` set: leave after that long without any use (C-19).
    """

    choices: Choices
    identity: ProcessIdentity
    lock: Callable[[Instance], Lock]
    ports: Callable[[Scope], Ports]
    open_journal: Callable[[Instance], Awaitable[Scope]]
    find_engines: Callable[[], None]
    specs: Sequence[DeploymentSpec]
    surfaces: Callable[[Runtime], Sequence[Surface]]
    echo: Callable[[str], None]
    config: dict[str, object] = field(default_factory=dict)
    idle_exit_s: float | None = None
    drain_s: float = 10.0
    shutdown_bound_s: float = 45.0
    warnings: Sequence[str] = ()


class Daemon:
    def __init__(self, blueprint: Blueprint) -> None:
        self._plan = blueprint
        self._asked = anyio.Event()
        self._signals = 0
        self.runtime: Runtime | None = None
        self._failed: list[str] = []

    async def run(self) -> int:
        """Serve until told to stop; the exit code (0, or 7 if a stop stayed unconfirmed).

        Raises:
            StokerError: it could not start; nothing is left behind.
        """
        plan = self._plan
        instance = Instance(os.urandom(6).hex())
        lock = plan.lock(instance)
        try:
            scope = await plan.open_journal(instance)
            ports = plan.ports(scope)
            async with self._closing(ports):
                hardware = await ports.threads(ports.devices.read)
                runtime = assemble(
                    ports, plan.choices, scope=scope, instance=instance, version=__version__, hardware=hardware
                )
                self.runtime = runtime
                runtime.census.config.update(plan.config)
                runtime.kernel.state.warnings.extend(plan.warnings)
                return await self._serve(runtime, ports, lock)
        finally:
            lock.release()

    async def _serve(self, runtime: Runtime, ports: Ports, lock: Lock) -> int:
        plan = self._plan
        surfaces = list(plan.surfaces(runtime))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_signals)
            await tasks.start(runtime.carrier.run)
            async with anyio.create_task_group() as listening:
                for surface in surfaces:
                    runtime.census.addresses.update(surface.addresses)
                    await listening.start(_serve_surface, surface)
                await self._open(runtime, ports, lock)
                tasks.start_soon(self._prune_logs, runtime, ports)
                if plan.idle_exit_s is not None:
                    tasks.start_soon(self._leave_when_idle, runtime, plan.idle_exit_s)
                await self._asked.wait()
                code = await self._stop(runtime, lock)
                runtime.bus.close()
                await anyio.sleep(_LINGER_S)  # last answers and events go out
                for surface in surfaces:
                    with self._isolated("listener"):
                        await surface.stop()
            tasks.cancel_scope.cancel()
        return code

    # -- start -----------------------------------------------------------------------------------------------------

    async def _open(self, runtime: Runtime, ports: Ports, lock: Lock) -> None:
        plan = self._plan
        reconciler = Reconciler(runtime.carrier, ports.journal, ports.units, runtime.logbook.folders)
        async with anyio.create_task_group() as beside:
            # An engine says its release by being run: that takes longest, and nothing else of the start needs it.
            beside.start_soon(ports.threads, plan.find_engines)
            for spec in plan.specs:
                try:
                    runtime.put_deployment(spec)
                except StokerError as error:
                    runtime.kernel.state.warnings.append(error.message)
            await runtime.refresh_models()
            runtime.carrier.post(inputs.OperationsRead(await ports.journal.operations()))
            await reconciler.run(ports.clock.wall())
            block = await ports.journal.generation_block()
        runtime.carrier.post(inputs.GenerationsStored(block.start, len(block)))
        if self._asked.is_set():
            return
        runtime.carrier.post(inputs.Opened(dict(reconciler.counts)))
        for spec in plan.specs:
            if spec.preload and not spec.pinned:
                runtime.load(spec.name, by="preload")
        addresses = runtime.census.addresses
        lock.update(
            state="ready", gateway_address=addresses.get("gateway", ""), control_socket=addresses.get("control", "")
        )
        _notify(f"READY=1\nSTATUS=Serving on {addresses.get('gateway', 'no address')}")
        plan.echo(f"Stoker {__version__} is ready on {addresses.get('gateway', 'no address')}")

    # -- stop ------------------------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """As a first TERM would."""
        self._signals += 1
        self._asked.set()

    async def _watch_signals(self) -> None:
        """First: drain. Second: skip the drain. Third: leave at once; guardians finish (S-18)."""
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            async for _ in received:
                self._signals += 1
                self._asked.set()
                if self._signals == 2 and self.runtime is not None:
                    self.runtime.carrier.post(inputs.BeginShutdown(skip_drain=True))
                if self._signals >= 3:
                    os._exit(EXIT_CODES[Family.UNCONFIRMED])

    async def _stop(self, runtime: Runtime, lock: Lock) -> int:
        plan = self._plan
        _notify("STOPPING=1")
        self._say("Stopping: running requests may finish.")
        with self._isolated("lock file"):
            lock.update(state="stopping")
        runtime.carrier.post(inputs.BeginShutdown(skip_drain=self._signals > 1, drain_s=plan.drain_s))
        with anyio.move_on_after(plan.shutdown_bound_s):
            await runtime.carrier.until(lambda: not any(_is_ending(s) for s in runtime.kernel.state.sessions.values()))
            if not runtime.kernel.state.sessions:
                await runtime.carrier.rest()
        left = list(runtime.kernel.state.sessions.values())
        for session in left:
            held = sum(session.state.reservation.values()) / 2**30
            self._say(
                f"The stop of {session.state.deployment} (generation {session.generation}, {held:.2f} GiB) is not "
                f"confirmed: {session.state.unconfirmed_cause or session.phase}."
            )
        return EXIT_CODES[Family.UNCONFIRMED] if left else 0

    @contextmanager
    def _isolated(self, what: str) -> Iterator[None]:
        """One step of the stop that fails must not keep the others from running."""
        try:
            yield
        except Exception as failed:  # noqa: BLE001 - the boundary between steps of a stop
            self._say(f"While stopping, the {what} failed: {failed}")

    def _say(self, words: str) -> None:
        """Nobody may be left to read it."""
        try:
            self._plan.echo(words)
        except Exception as failed:  # noqa: BLE001 - the same boundary
            self._failed.append(f"{words} ({failed!r})")

    @asynccontextmanager
    async def _closing(self, ports: Ports) -> AsyncIterator[None]:
        """The host's own helpers and the journal end with the run, the journal last."""
        is_over = False
        try:
            async with ports.units:
                yield
                is_over = True
        except Exception as failed:
            if not is_over:
                raise
            self._say(f"While stopping, the host failed: {failed}")
        finally:
            with anyio.CancelScope(shield=True), self._isolated("journal"):
                await ports.journal.close()

    async def _prune_logs(self, runtime: Runtime, ports: Ports) -> None:
        while True:
            try:
                await runtime.logbook.prune(ports.clock.wall())
            except (OSError, StokerError) as failed:
                runtime.kernel.state.warnings.append(f"Old engine logs could not be removed: {failed}")
            await anyio.sleep(_PRUNE_EVERY_S)

    async def _leave_when_idle(self, runtime: Runtime, idle_exit_s: float) -> None:
        """A daemon that `run` started leaves when nobody has used it for a while (C-19)."""
        idle_since = anyio.current_time()
        while True:
            await anyio.sleep(min(_IDLE_LOOK_S, idle_exit_s / 4))
            state = runtime.kernel.state
            running = any(not operation.is_over for operation in state.operations.values())
            if state.sessions or state.waiting or running or runtime.bus.subscribers:
                idle_since = anyio.current_time()
            elif anyio.current_time() - idle_since >= idle_exit_s:
                self._plan.echo("Nobody has used Stoker for a while: it leaves.")
                self.ask_to_stop()
                return


def _is_ending(session: Session) -> bool:
    return session.phase is not Phase.STOP_UNCONFIRMED


async def _serve_surface(surface: Surface, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await surface.run(task_status=task_status)


def _notify(state: str) -> None:
    """Tell a service manager that listens where ``NOTIFY_SOCKET`` says (systemd's protocol: one datagram)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            return
