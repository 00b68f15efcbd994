"""From a running unit to a ready one, and whether it still answers afterwards (S-99 to S-110).

Ready means that the route this engine documents as able to answer has answered, from a listener that is the unit's
own. An open port, a model list or a process that lives is not enough; an inspect that fails is not an exit.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from stoker.domain.context import LaunchPlan
from stoker.domain.session import (
    BecameReady,
    ExitFacts,
    Failure,
    Liveness,
    LivenessChanged,
    LoadTimedOut,
    ReadyRefused,
    Reason,
    StageSeen,
    Stop,
)  # fmt: skip
from stoker.ids import RAM, Generation
from stoker.ports import units as host
from stoker.ports.engines import STAGE_ORDER, Accepted, ExitSeen, ProbeRoute, ReadySeen, Seen, Stage, Verdict
from stoker.ports.upstream import Probes, Reply
from stoker.runtime.inputs import UnitUsed
from stoker.runtime.outbox import Assignment
from stoker.runtime.tickets import Door

_PROBE_LEAST_S, _PROBE_MOST_S = 0.010, 0.250
_LIVENESS_EVERY_S, _DEGRADED_AFTER, _STREAMING_S = 10.0, 3, 60.0
_NOTED_FORMS = 64
_BLANKS = re.compile(r"[0-9]+")
_REPORT_MOST_S, _REPORT_LEAST_S = 0.25, 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take (S-102, S-110), in seconds."""

    load_stall_s: float = 180.0
    load_ceiling_s: float = 3600.0
    hang_s: float = 300.0


class Around(Protocol):
    """What readiness needs of a supervisor's surroundings."""

    @property
    def units(self) -> host.Units: ...
    @property
    def probes(self) -> Probes: ...
    @property
    def post(self) -> Callable[[Any], None]: ...
    @property
    def patience(self) -> Patience: ...
    @property
    def now(self) -> Callable[[], float]: ...


def exit_facts(ended: host.Exit) -> ExitFacts:
    return ExitFacts(ended.code, ended.signal, ended.oom_killed, ended.wall, ended.by)


class LoadWatch:
    """Watches one load: reads the log, probes, and keeps the two deadlines of S-102, counted from ``began``."""

    def __init__(
        self,
        assignment: Assignment,
        plan: LaunchPlan,
        unit_plan: host.UnitPlan,
        unit: host.UnitIdentity,
        endpoint: host.Endpoint,
        around: Around,
        tail: deque[str],
        began: float,
    ) -> None:
        prospect = assignment.prospect
        assert prospect is not None
        self._adapter, self._plan, self._around, self._unit = prospect.adapter, plan, around, unit
        self._generation: Generation = assignment.generation
        self._unit_plan = unit_plan
        self._tail = tail
        self._startup = self._adapter.startup(plan, prospect.installation.build)
        self._base_s = self._adapter.load_allowance_s(plan.facts.total_bytes, plan.settings)
        self._ceiling_s = assignment.load_timeout_s or max(around.patience.load_ceiling_s, self._base_s)
        self.seen = Seen(stage=Stage.LOADING_WEIGHTS)
        self._cursor = 0
        self._forms: deque[str] = deque(maxlen=_NOTED_FORMS)
        self._began = began
        self._progressed: float | None = None
        self._reported = float("-inf")
        self._entered = {Stage.LOADING_WEIGHTS: around.now()}
        self._reported_seen: Seen | None = None
        self._wake = anyio.Event()
        self._endpoint = endpoint
        self.usage: host.Usage | None = None
        """What the unit held when it became ready."""

    @property
    def liveness_route(self) -> ProbeRoute:
        return self._startup.liveness

    # -- the log ---------------------------------------------------------------------------------------------------

    async def follow_log(self) -> None:
        """Read lines as they come; ends with the unit. A line that tells nothing new is no progress (S-103)."""
        async for line in self._around.units.logs(self._unit, self._cursor):
            self._take_line(line)

    async def read_rest(self) -> None:
        """What the log held when the unit ended."""
        await self.follow_log()

    def _take_line(self, line: host.LogLine) -> None:
        self._cursor = max(self._cursor, line.cursor)
        if not line.repaint:
            self._tail.append(line.text)
        before = self.seen
        after = self._adapter.read_line(line.text, before)
        form = _BLANKS.sub("#", line.text)
        if form not in self._forms:
            self._forms.append(form)
            self._progressed = self._around.now()
        if after is before:
            return
        stage = after.stage if STAGE_ORDER[after.stage] >= STAGE_ORDER[before.stage] else before.stage
        if stage is not before.stage:
            self._entered.setdefault(stage, self._around.now())
            self._reported = float("-inf")
        self.seen = after
        if after.fatal is not None or (after.listening and not before.listening):
            self._wake.set()

    async def measure(self) -> host.Usage | None:
        """What the unit holds now; the host learns from it whom it could still identify (S-39, S-43)."""
        usage = await self._around.units.usage(self._unit)
        if usage is not None:
            self._around.post(UnitUsed(self._generation, {RAM: usage.anonymous_bytes + usage.mapped_bytes}))
        return usage

    # -- the wait --------------------------------------------------------------------------------------------------

    async def run(self) -> BecameReady | None:
        """Probe until ready. Posts refusals and time limits itself; returns the readiness to post, or None."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.follow_log)
            ready = await self._probe_until_ready()
            tasks.cancel_scope.cancel()
        return ready

    async def _probe_until_ready(self) -> BecameReady | None:
        while True:
            now = self._around.now()
            if self.seen.fatal is not None:
                self._around.post(ReadyRefused(self._generation, self._fatal()))
                return None
            if (late := self._late(now)) is not None:
                self._around.post(late)
                return None
            self._report(now)
            owns = await self._around.units.owns_listener(self._unit, self._endpoint)
            if owns is False:
                self._around.post(self._foreign())
                return None
            if owns and (bodies := await self._probe()) is not None:
                return await self._judge(bodies)
            await self._pause(self._around.now() - self._began)

    async def _pause(self, elapsed_s: float) -> None:
        """S-101: 1 % of the elapsed time between 10 and 250 ms; at once when the log says "listening".

        What it said while a probe was on its way counts as well.
        """
        with anyio.move_on_after(min(_PROBE_MOST_S, max(_PROBE_LEAST_S, 0.01 * elapsed_s))):
            await self._wake.wait()
        self._wake = anyio.Event()

    async def _probe(self) -> dict[str, bytes] | None:
        probe = self._startup.probe
        reply = await self._call(probe.path, probe.timeout_s)
        if reply is None or reply.status != probe.status or probe.body_has not in reply.body:
            return None
        return {probe.path: reply.body}

    async def _ask_more(self, bodies: dict[str, bytes]) -> None:
        for path in self._startup.also:
            more = await self._call(path, self._startup.probe.timeout_s)
            if more is not None and more.status == 200:
                bodies[path] = more.body

    async def _call(self, path: str, timeout_s: float) -> Reply | None:
        token = None if self._adapter.traits.token == "none" else self._unit_plan.secrets[0]  # noqa: S105 - the word
        reply = await self._around.probes.call(self._endpoint, "GET", path, token=token, timeout_s=timeout_s)
        return reply if isinstance(reply, Reply) else None

    async def _judge(self, bodies: dict[str, bytes]) -> BecameReady | None:
        """The engine answered: ownership again, what it holds and what else it tells, all at once (S-45, S-107)."""
        owns: bool | None = None

        async def look() -> None:
            nonlocal owns
            owns = await self._around.units.owns_listener(self._unit, self._endpoint)

        async def weigh() -> None:
            self.usage = await self._around.units.usage(self._unit)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask_more, bodies)
            tasks.start_soon(look)
            tasks.start_soon(weigh)
        if not owns:
            self._around.post(self._foreign())
            return None
        usage = self.usage
        measured = {} if usage is None else {RAM: usage.anonymous_bytes + usage.mapped_bytes}
        judged = self._adapter.judge_ready(ReadySeen(bodies, self.seen, self._plan, measured))
        match judged:
            case Accepted():
                return BecameReady(self._generation, judged, measured, self._stages_ms())
            case Verdict():
                failure = Failure(
                    judged.kind, judged.message, judged.cause, judged.remedy, judged.numbers, judged.excerpt
                )
                self._around.post(ReadyRefused(self._generation, failure))
                return None

    def _stages_ms(self) -> dict[str, int]:
        now = self._around.now()
        edges = sorted(self._entered.items(), key=lambda entry: STAGE_ORDER[entry[0]])
        ends = [at for _, at in edges[1:]] + [now]
        return {str(stage): round((end - at) * 1000) for (stage, at), end in zip(edges, ends, strict=True)}

    # -- bounds ----------------------------------------------------------------------------------------------------

    def _deadline(self) -> float:
        """The earlier of soft (allowance, or a stall after the last progress) and hard (the ceiling): S-102."""
        soft = self._began + self._base_s
        if self._progressed is not None:
            soft = max(soft, self._progressed + self._around.patience.load_stall_s)
        return min(soft, self._began + self._ceiling_s)

    def _late(self, now: float) -> LoadTimedOut | None:
        deadline = self._deadline()
        if now < deadline:
            return None
        stalled = deadline < self._began + self._ceiling_s
        elapsed_s = now - self._began
        if stalled:
            code, words = "load-stalled", f"showed no progress for {now - (self._progressed or self._began):.0f} s"
        else:
            code, words = "load-timed-out", f"was not ready after {elapsed_s:.0f} s"
        failure = Failure(
            code,
            f"{self._plan.deployment} {words} (stage {self.seen.stage}).",
            kind=code,
            remedy="Look at its log with `stoker logs`, or raise load_timeout_s.",
            numbers={"elapsed_ms": round(elapsed_s * 1000)},
            excerpt=tuple(self._tail)[-8:],
        )
        return LoadTimedOut(self._generation, failure, stalled=stalled)

    def _report(self, now: float) -> None:
        """At most four a second, at least every five seconds (S-104)."""
        stale = now - self._reported
        if stale < _REPORT_MOST_S or (stale < _REPORT_LEAST_S and self._reported_seen is self.seen):
            return
        self._reported, self._reported_seen = now, self.seen
        self._around.post(
            StageSeen(
                self._generation,
                str(self.seen.stage),
                self.seen.percent,
                elapsed_ms=round((now - self._began) * 1000),
                deadline_ms=round((self._deadline() - now) * 1000),
                ceiling_ms=round(self._ceiling_s * 1000),
            )
        )

    def _fatal(self) -> Failure:
        verdict = self._adapter.explain(ExitSeen(None, "initializing", tuple(self._tail), self._plan, self.seen))
        return Failure(verdict.kind, verdict.message, verdict.cause, verdict.remedy, verdict.numbers, verdict.excerpt)

    def _foreign(self) -> ReadyRefused:
        """Somebody else listens where the engine should: never probed as ours (S-45)."""
        failure = Failure(
            "port-in-use",
            f"Another program listens on {self._endpoint} where {self._plan.deployment} should.",
            kind="port-in-use",
            remedy="End that program, or let Stoker choose the port.",
        )
        return ReadyRefused(self._generation, failure)


async def watch_liveness(door: Door, load: LoadWatch, around: Around) -> None:
    """One call every 10 s, not counted as use (S-109, S-110)."""
    probe = load.liveness_route
    failures = 0
    said = Liveness.OK
    failing_since = around.now()
    while True:
        await anyio.sleep(_LIVENESS_EVERY_S)
        await load.measure()
        reply = await around.probes.call(door.endpoint, "GET", probe.path, token=door.token, timeout_s=5.0)
        if isinstance(reply, Reply) and reply.status == probe.status:
            failures, failing_since = 0, around.now()
            liveness = Liveness.OK
        elif around.now() - door.activity.last_byte_at < _STREAMING_S:
            continue
        else:
            failures += 1
            liveness = Liveness.DEGRADED if failures >= _DEGRADED_AFTER else Liveness.SUSPECT
        if liveness is not said:
            said = liveness
            around.post(LivenessChanged(door.generation, liveness, failures))
        quiet_s = around.now() - max(failing_since, door.activity.last_byte_at)
        if said is Liveness.DEGRADED and quiet_s >= around.patience.hang_s:
            around.post(Stop(door.generation, Reason.HUNG, mode="now"))
            return
