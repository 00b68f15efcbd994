"""The event stream against the kernel it tells of (control, section 11: lines 10 to 13)."""

from __future__ import annotations

import random
from contextlib import aclosing
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import trio
from scenes import finished, loaded, session_of, until, until_phase

from stoker.domain.events import EVENTS
from stoker.domain.session import Phase
from stoker.errors import StokerError
from stoker.ids import DeploymentName
from stoker.ports.units import Exit, StartFailed
from stoker.runtime.inputs import BeginShutdown
from stoker.testing.fake_units import Script
from stoker.testing.faults import StopUnconfirmed
from stoker.testing.simulation import Simulation

Event = dict[str, Any]


# -- snapshot and deltas (lines 10 and 11) -------------------------------------------------------------------------


class Mirror:
    """What a client knows who takes a snapshot and then applies events, by nothing but their fields."""

    def __init__(self) -> None:
        self.sessions: dict[int, str] = {}
        self.queue: list[str] = []
        self.operations: dict[str, tuple[str, int]] = {}
        self.deployments: dict[str, int] = {}
        self.last_id = ""
        self.snapshots = 0

    def take(self, event: Event) -> None:
        self.last_id = event["id"]
        name = event["event"]
        noun, _, word = name.partition(".")
        match noun:
            case "stream":
                if name == "stream.snapshot-taken":
                    self.snapshots += 1
                    self._snapshot(event)
            case "session":
                self._session(word, event)
            case "ticket":
                self._ticket(word, event["ticket_id"])
            case "operation":
                self.operations[event["operation_id"]] = (event["state"], event["revision"])
            case "deployment":
                if word == "removed":
                    self.deployments.pop(event["deployment"], None)
                else:
                    self.deployments[event["deployment"]] = event["revision"]
            case _:
                pass

    def _snapshot(self, event: Event) -> None:
        self.sessions = {s["generation"]: _coarse(s["phase"]) for s in event["sessions"]}
        self.queue = [ticket["ticket_id"] for ticket in event["queue"]]
        self.operations = {o["operation_id"]: (o["state"], o["revision"]) for o in event["operations"]}
        self.deployments = {d["name"]: d["revision"] for d in event["deployments"]}

    def _session(self, word: str, event: Event) -> None:
        phases = {
            "reserved": "loading", "load-completed": "ready", "drain-begun": "draining", "stop-begun": "ending",
            "stop-unconfirmed": "ending",
        }  # fmt: skip
        generation = event["generation"]
        if word == "ended":
            self.sessions.pop(generation, None)
        elif word in phases:
            self.sessions[generation] = phases[word]

    def _ticket(self, word: str, ticket_id: str) -> None:
        if word == "queued":
            self.queue.append(ticket_id)
        else:
            self.queue.remove(ticket_id)

    def picture(self) -> tuple[object, ...]:
        return self.sessions, sorted(self.queue), self.operations, self.deployments


def _coarse(phase: str) -> str:
    """Phases between which no event tells the difference are one (S-116 has none for them)."""
    if phase in {"reserved", "preparing", "starting", "initializing"}:
        return "loading"
    return "ending" if phase in {"stopping", "stop-unconfirmed"} else phase


def fresh(sim: Simulation) -> tuple[object, ...]:
    from dataclasses import asdict

    mirror = Mirror()
    mirror._snapshot(asdict(sim.runtime.snapshot()))
    return mirror.picture()


async def reader(sim: Simulation, mirror: Mirror, since: str | None) -> None:
    async with aclosing(sim.runtime.subscribe(last_event_id=since, topics=None)) as events:  # type: ignore[type-var]
        async for event in events:
            mirror.take(dict(event))


@pytest.mark.seeds(8)
def test_a_snapshot_and_its_deltas_are_a_fresh_snapshot_whoever_reconnects_where(seed: int) -> None:
    """C-13 to C-16, lines 10 and 11: thousands of steps, compared at rest, reconnecting at known and lost ids."""
    draw = random.Random(seed)
    models = ["a", "b", "c"]
    compared = 0

    async def disturb(sim: Simulation, nursery: trio.Nursery) -> None:
        runtime, name = sim.runtime, draw.choice(models)
        spec = runtime.kernel.state.deployments[DeploymentName(name)].spec
        try:
            match draw.choice(["load", "unload", "put", "cancel", "crash", "request", "request", "request"]):
                case "load":
                    runtime.load(name)
                case "unload":
                    runtime.unload(name, mode=draw.choice(["now", "drain"]))
                case "put":
                    runtime.put_deployment(replace(spec, max_queued=draw.randint(1, 64)))
                case "cancel" if runtime.operations():
                    runtime.cancel_operation(draw.choice(runtime.operations()).operation_id)  # type: ignore[arg-type]
                case "crash" if sim.host.alive():
                    unit = draw.choice(sim.host.alive())
                    unit.end_by(sim.now, Exit(1, None, None, 0.0, "engine"))
                case _:
                    patience_s = draw.choice([0.3, 5.0, inf])
                    nursery.start_soon(lambda: sim.request(name, draw.choice([0.0, 0.5]), patience_s=patience_s))
        except StokerError:
            pass

    async def scenario(sim: Simulation) -> None:
        nonlocal compared
        mirror, since = Mirror(), None
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                async with trio.open_nursery() as listening:
                    listening.start_soon(reader, sim, mirror, since)
                    for _ in range(draw.randint(1, 12)):
                        await disturb(sim, nursery)
                        await trio.sleep(draw.expovariate(3.0))
                    await trio.testing.wait_all_tasks_blocked()
                    assert mirror.picture() == fresh(sim)
                    compared += 1
                    listening.cancel_scope.cancel()
                for _ in range(draw.choice([0, 0, 1, 5])):  # nobody listens
                    await disturb(sim, nursery)
                    await trio.sleep(draw.expovariate(3.0))
                since = draw.choice([mirror.last_id, mirror.last_id, mirror.last_id, None, "run0:7"])
        assert mirror.snapshots > 1

    sim = Simulation(seed=seed, models={"a": 400, "b": 400, "c": 300}, budget_mib=800)
    sim.run(scenario)
    assert compared == 40
    assert len(sim.events) > 300


def test_replay_and_live_join_without_loss_or_doubles_and_gaps_say_why() -> None:
    """C-14, C-15, line 11: by buffer, by instance, by a slow reader."""

    async def first(sim: Simulation, since: str | None, count: int) -> list[Event]:
        taken: list[Event] = []
        async with aclosing(sim.runtime.subscribe(last_event_id=since, topics=None)) as events:  # type: ignore[type-var]
            while len(taken) < count:
                taken.append(dict(await anext(events)))
        return taken

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        told = [event["id"] for event in sim.events]
        for place in range(len(told) - 1):
            replayed = await first(sim, told[place], len(told) - place - 1)
            assert [event["id"] for event in replayed] == told[place + 1 :]
        for since, reason in (("run0:3", "instance"), (f"{sim.runtime.bus.last_id}9", "buffer"), ("word", "instance")):
            gap, snapshot = await first(sim, since, 2)
            assert (gap["event"], gap["reason"]) == ("stream.gapped", reason)
            assert snapshot["event"] == "stream.snapshot-taken"
            assert snapshot["last_event_id"] == sim.runtime.bus.last_id
        for _ in range(4200):
            sim.runtime.put_deployment(_flipped(sim, "b"))
        gap, _ = await first(sim, told[0], 2)  # 4,096 are kept
        assert gap["reason"] == "buffer"

    Simulation(seed=1, models={"a": 400, "b": 400}, budget_mib=1000).run(scenario)


def _flipped(sim: Simulation, model: str) -> Any:
    spec = sim.runtime.kernel.state.deployments[DeploymentName(model)].spec
    return replace(spec, max_queued=33 - spec.max_queued if spec.max_queued < 64 else 16)


def test_a_reader_that_sleeps_delays_nobody_and_holds_a_bounded_queue() -> None:
    """C-15, line 12: it gets a gap and a snapshot once it reads again; another reader misses nothing."""

    async def scenario(sim: Simulation) -> None:
        quick, slow = Mirror(), Mirror()
        ids: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader, sim, quick, None)
            events = sim.runtime.subscribe(last_event_id=None, topics=None)
            async with aclosing(events):  # type: ignore[type-var]
                slow.take(dict(await anext(events)))
                began = sim.now
                for n in range(3000):
                    sim.runtime.put_deployment(_flipped(sim, "b"))
                    if n % 100 == 0:
                        await trio.testing.wait_all_tasks_blocked()
                    (longest,) = [max(len(s.queue) for s in sim.runtime.bus._subscribers)]
                    assert longest <= 1024
                assert sim.now == began  # nobody was waited for
                await trio.testing.wait_all_tasks_blocked()
                assert quick.picture() == fresh(sim)
                assert quick.snapshots == 1
                gap, snapshot = dict(await anext(events)), dict(await anext(events))
                assert (gap["event"], gap["reason"]) == ("stream.gapped", "slow-subscriber")
                slow.take(snapshot)
                assert slow.picture() == fresh(sim)
                sim.runtime.put_deployment(_flipped(sim, "b"))
                following = dict(await anext(events))
                assert following["event"] == "deployment.changed"
                ids.append(following["id"])
            nursery.cancel_scope.cancel()
        assert sim.runtime.bus.gaps == {"slow-subscriber": 1}

    Simulation(seed=1, models={"a": 400, "b": 400}, budget_mib=1000).run(scenario)


def test_topics_filter_and_the_sixty_fifth_reader_is_refused() -> None:
    """C-14, C-15."""

    async def scenario(sim: Simulation) -> None:
        taken: set[str] = set()

        async def only_operations() -> None:
            stream = sim.runtime.subscribe(last_event_id=sim.runtime.bus.last_id, topics=frozenset({"operation"}))
            async with aclosing(stream):  # type: ignore[type-var]
                async for event in stream:
                    taken.add(event["event"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(only_operations)
            await trio.testing.wait_all_tasks_blocked()
            await finished(sim, sim.runtime.load("a"))
            for _ in range(63):
                nursery.start_soon(reader, sim, Mirror(), None)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(StokerError, match="64 subscribers"):
                await anext(sim.runtime.subscribe(last_event_id=None, topics=None))
            nursery.cancel_scope.cancel()
        assert taken == {"operation.created", "operation.progressed", "operation.finished"}
        assert sim.runtime.bus.subscribers == 0

    Simulation(seed=1, models={"a": 400}, budget_mib=1000).run(scenario)


# -- every event (line 13) -----------------------------------------------------------------------------------------

NEVER = {
    # No part of this version makes them happen.
    "unit.adopted": "process units are never adopted (S-93)",
    "unit.reported": "the simulated host can always tell, or hangs and is tried again",
    "image.": "containers",
    "runtime.": "containers",
    "pull.": "fetching models",
    "model.": "the store tells of no changes",
    "engine.": "installing engines",
    "cache.": "prompt caches are not saved",
    "key.": "keys",
    "config.": "told by the reload of the daemon's own configuration",
    "request.finished": "told by the gateway's records",
    # Rules whose part is not carried out.
    "session.measured": "M-75: reservations are not corrected by measurement",
    "footprint.": "M-52: footprints are not learned",
    "residency.thrashed": "R-28: swaps are not counted per replica",
    "admission.stalled": "M-69: a wait that lasts is told as queue.stalled",
    "pool.changed": "M-31: pools tell no changes",
    "queue.changed": "C-16: in-flight counts have no event of their own",
    "queue.limits-changed": "told as deployment.changed",
    "ticket.moved": "R-24: tickets are not moved",
}
"""Events that no scenario can produce, and why. An entry that ends in a dot stands for all of that noun."""


def test_every_event_that_this_version_can_tell_is_told_and_matches_its_fields() -> None:
    """S-116, C-13, line 13: `Simulation` checks each against the table; here each must have happened once."""
    seen: set[str] = set()
    for scene in (_an_ordinary_day, _trouble, _doubt, _a_killed_daemon):
        sim = scene()
        seen |= {event["event"] for event in sim.events}
    streamed = {"stream.snapshot-taken", "stream.gapped"}  # made per reader: the tests above
    excused = {
        event for event in EVENTS if any(event == key or (key[-1] == "." and event.startswith(key)) for key in NEVER)
    }
    assert seen & excused == set(), "an excuse is out of date"
    assert set(EVENTS) - excused - streamed - seen == set()


def _an_ordinary_day() -> Simulation:
    """Loads, swaps, earmarks, changes and ends."""

    async def scenario(sim: Simulation) -> None:
        runtime = sim.runtime
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 50.0)
            await until_phase(sim, "a", Phase.READY)
            nursery.start_soon(lambda: sim.request("b", patience_s=35.0))
            await until(sim, lambda: bool(sim.told("session.earmark-lifted")), 60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a", 3.0)
            nursery.start_soon(sim.request, "a", 3.0)
            nursery.start_soon(lambda: sim.request("a", 3.0, max_wait_s=1.0))
            nursery.start_soon(lambda: sim.request("a", 3.0, patience_s=1.0))
            await trio.sleep(2)
            runtime.unload("a")
            nursery.start_soon(lambda: sim.request("never"))
        spec = runtime.kernel.state.deployments[DeploymentName("b")].spec
        await loaded(sim, "b")
        runtime.put_deployment(replace(spec, settings={"max_output_tokens": 9}))
        await until(sim, lambda: bool(sim.told("session.settings-adopted")), 5)
        runtime.put_deployment(replace(spec, origin="control", name=DeploymentName("extra")))
        await finished(sim, runtime.delete_deployment("extra"))
        operation = runtime.load("a")
        await until_phase(sim, "a", Phase.INITIALIZING)
        runtime.cancel_operation(operation.operation_id)  # type: ignore[arg-type]
        await trio.sleep(5)
        runtime.carrier.post(BeginShutdown())

    sim = Simulation(seed=1, models={"a": 400, "b": 400, "never": 4000}, budget_mib=500)
    sim.run(scenario)
    return sim


def _trouble() -> Simulation:
    """Crashes, holds, degraded engines, failed loads."""

    async def scenario(sim: Simulation) -> None:
        for _ in range(4):
            await sim.request("a", 3.0)
            await trio.sleep(5)
        sim.runtime.release_hold("a", None)
        await sim.request("b")
        await trio.sleep(90)

    def script(plan: Any) -> Script:
        if plan.deployment == "b":
            return Script(deaf=((5.0, inf),))
        if int(plan.generation) == 1:
            return Script(start_failures=(StartFailed("no-answer", may_exist=False),))
        return Script(exits_after_s=1.0)

    sim = Simulation(seed=1, models={"a": 400, "b": 400}, budget_mib=1000, script=script)
    sim.run(scenario)
    return sim


def _doubt() -> Simulation:
    """What is not proven gone, until it is given up; a queue that is stuck behind it."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        sim.runtime.unload("a", mode="now")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "b")
            await until(sim, lambda: bool(sim.told("queue.stalled")), 200)
            await until_phase(sim, "a", Phase.STOP_UNCONFIRMED)
            session = session_of(sim, "a")
            assert session is not None
            sim.runtime.force_release(session.generation, by="ann")
        await trio.sleep(2)
        for unit in sim.host.alive():
            unit.unconfirmed_left = 0
        await trio.sleep(120)

    faults = (StopUnconfirmed(inf, "a"),)
    sim = Simulation(seed=1, models={"a": 400, "b": 400}, budget_mib=500, faults=faults)
    sim.run(scenario)
    return sim


def _a_killed_daemon() -> Simulation:
    """Leftovers: one whose unit is there to be reaped, one of which nothing is left."""

    async def scenario(sim: Simulation) -> None:
        await loaded(sim, "a")
        await sim.kill_daemon()
        await trio.sleep(5)
        await sim.start_daemon()
        await loaded(sim, "b")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sim.request, "a")
            await until_phase(sim, "a", Phase.PREPARING)
            await trio.sleep(0.02)
            await sim.kill_daemon()
        await sim.start_daemon()

    sim = Simulation(
        seed=1, models={"a": 400, "b": 400}, budget_mib=1000,
        script=lambda plan: Script(obeys_term_after_s=1.5, prepare_delay_s=0.1),
    )  # fmt: skip
    sim.run(scenario)
    return sim
