"""The adapter contract: what Stoker asks of every engine, and the plain records it gives and takes (E section 1).

An adapter is one frozen object: no state, no clock, no I/O. What must be asked of an engine is data
(`ProbeCommand`, `EngineCall`); the shell makes the call and hands back what came (E-1). Every method is total: any
bytes, any log and any JSON end in a value, never in an exception (E-2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from stoker.domain.context import EngineWishes, LaunchPlan
from stoker.domain.footprint import MemoryProfile
from stoker.domain.hardware import Hardware
from stoker.domain.models import ModelFacts
from stoker.errors import ErrorCode
from stoker.ids import EngineId, Generation, PoolId
from stoker.ports.units import Endpoint, Exit

CONTRACT = 1


class Stage(StrEnum):
    """Stages of a start, in order; they never go back (S-99)."""

    CLAIMING_ROOM = "claiming-room"
    PREPARING = "preparing"
    PULLING_IMAGE = "pulling-image"
    STARTING_UNIT = "starting-unit"
    LOADING_WEIGHTS = "loading-weights"
    WARMING_UP = "warming-up"
    VERIFYING = "verifying"
    READY = "ready"


STAGE_ORDER = {stage: place for place, stage in enumerate(Stage)}


@dataclass(frozen=True, slots=True)
class OptionRules:
    """Which of an operator's extra arguments an engine may get (E-27, E-28).

    ``free``: option -> how many values it takes; ``reserved``: option -> the setting of ours that decides it, or "";
    ``env_prefixes``: variables that set options. What is neither free nor reserved is refused as unknown.
    """

    free: Mapping[str, int] = field(default_factory=dict)
    reserved: Mapping[str, str] = field(default_factory=dict)
    env_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Traits:
    """What holds for every build of an engine. ``arguments`` judges an operator's own arguments."""

    formats: frozenset[str]
    tasks: frozenset[str]
    unit_kinds: frozenset[str]
    self_sizing: str = "none"
    endpoints: frozenset[str] = frozenset({"tcp"})
    token: str = "none"  # noqa: S105 - how a token is given, not one
    stop_grace_s: float = 10.0
    members: int = 1
    exclusive: bool = False
    arguments: OptionRules = OptionRules()


@dataclass(frozen=True, slots=True)
class InstallationSite:
    """Where an engine lies on this host: the program (or interpreter) and how it was found."""

    kind: str  # "embedded" | "binary"
    executable: str
    origin: str = "host"  # host | environment | configured


@dataclass(frozen=True, slots=True)
class Search:
    """``kind`` binary: ``name`` is a program on PATH; embedded: ``name`` is a module of our own interpreter."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ProbeCommand:
    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Captured:
    """What one probe command gave. ``ended``: exit, timeout or missing."""

    status: int | None
    stdout: bytes
    stderr: bytes
    took_ms: float
    ended: str = "exit"


@dataclass(frozen=True, slots=True)
class BuildDevice:
    name: str
    description: str = ""
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Build:
    """What one installed program can do, read from itself (E-12, E-13)."""

    engine: EngineId
    release: str
    features: frozenset[str]
    commit: str | None = None
    values: Mapping[str, frozenset[str]] = field(default_factory=dict)
    devices: tuple[BuildDevice, ...] = ()
    digest: str = ""


@dataclass(frozen=True, slots=True)
class BuildRefused:
    cause: str
    message: str


@dataclass(frozen=True, slots=True)
class Installation:
    """One engine release present on this host."""

    installation_id: str
    engine: EngineId
    site: InstallationSite
    build: Build | None
    state: str = "ready"  # ready | broken
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something cannot be done, before a start: a code, one sentence, details."""

    code: ErrorCode
    message: str
    param: str | None = None
    remedy: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


Problem = Reason


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a session can do; each ``yes``, ``no`` or ``unknown``, and unknown counts as no (E-16)."""

    task: str = "generate"
    flags: Mapping[str, str] = field(default_factory=dict)
    max_choices: int = 1

    def can(self, name: str) -> bool:
        return self.flags.get(name) == "yes"


@dataclass(frozen=True, slots=True)
class Site:
    """Everything about where a launch runs that is not in the plan. Paths as the unit sees them.

    ``build`` says which flags exist; None: those that the descriptor assumes.
    """

    unit_kind: str
    executable: str
    site_kind: str
    model_path: str
    served_name: str
    generation: Generation
    life_dir: str
    cache_dir: str
    slots_dir: str
    endpoint: Endpoint
    token: str | None = None
    cards: tuple[tuple[str, int], ...] = ()
    extra_args: tuple[str, ...] = ()
    extra_env: Mapping[str, str] = field(default_factory=dict)
    build: Build | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """The complete instruction for one unit. ``{port}`` in argv or files stands for the port of this attempt."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, tuple[str, bool]]
    endpoint: Endpoint
    stop_grace_s: float
    shown: tuple[str, ...]
    shm_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ProbeRoute:
    """A GET that proves something. ``body_has``: bytes the answer must contain, if any."""

    path: str
    status: int = 200
    body_has: bytes = b""
    timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Startup:
    """How to see that a start goes on. ``also`` are paths fetched once after the first good probe (for judge_ready)."""

    probe: ProbeRoute
    liveness: ProbeRoute
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What the log has told so far. ``listening`` asks for a probe at once; ``fatal`` ends the wait (E-40)."""

    stage: Stage = Stage.STARTING_UNIT
    percent: int | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[tuple[str, str], int] = field(default_factory=dict)
    listening: bool = False
    fatal: str | None = None


@dataclass(frozen=True, slots=True)
class ReadySeen:
    """For `judge_ready`: bodies by path, the log's numbers, the plan and measured bytes per pool."""

    bodies: Mapping[str, bytes]
    seen: Seen
    plan: LaunchPlan
    measured: Mapping[PoolId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accepted:
    width: int
    context_tokens: int
    capabilities: Capabilities
    engine_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExitSeen:
    """For `explain`. ``lines`` is the whole log before ready, the tail after it; ``phase`` the session's."""

    exit: Exit | None
    phase: str
    lines: Sequence[str]
    plan: LaunchPlan | None = None
    seen: Seen = Seen()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an exit or refusal means. ``kind`` is the ErrorCode value it is answered with; ``cause`` the finer word."""

    kind: str
    cause: str
    message: str
    remedy: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    excerpt: tuple[str, ...] = ()
    decisive_line: str | None = None


@dataclass(frozen=True, slots=True)
class EngineCall:
    method: str
    path: str
    body: bytes = b""
    timeout_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Abort:
    """How work ends when a client leaves: ``closes`` or ``runs-on``, with seconds to settle (E-61).

    ``busy`` asks the engine whether a slot still works; ``free_line`` matches a log line that says one is free.
    """

    streamed: str = "closes"
    plain: str = "closes"
    settle_s: float = 0.0
    busy: EngineCall | None = None
    busy_every_s: float = 3.0
    free_line: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    http: str = "1.1"
    idle_s: float = 60.0
    max_requests: int = 0  # 0: no limit
    host_header: str = "localhost"


@dataclass(frozen=True, slots=True)
class Route:
    """One reachable engine route (R-88). ``kind``: work or light; ``dialect``: openai, anthropic, ollama."""

    method: str
    path: str
    kind: str = "work"
    dialect: str = "openai"


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """``asks``: ask name -> yes, no or edit; ``control``: member names that are always refused (E-18, E-19)."""

    routes: frozenset[Route]
    asks: Mapping[str, str] = field(default_factory=dict)
    control: frozenset[str] = frozenset()
    max_choices: int = 1


@dataclass(frozen=True, slots=True)
class Peek:
    """The members the gateway has read from a body, each with its byte span (R-60, R-61)."""

    members: Mapping[str, Any]
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edits:
    """Top-level changes by member name: values are raw JSON bytes; None removes the member."""

    members: Mapping[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BreakCause:
    code: ErrorCode
    numbers: Mapping[str, int] = field(default_factory=dict)


class Wire(Protocol):
    """The part of an adapter that the request path uses; precomputed once per session."""

    @property
    def policy(self) -> RoutePolicy: ...
    @property
    def connection(self) -> ConnectionFacts: ...
    @property
    def abort(self) -> Abort: ...

    def edit(self, route: Route, peek: Peek) -> Edits | Problem | None:
        """Changes to make in a body, a refusal, or None for nothing to do."""
        ...

    def map_error(self, route: Route, status: int, body: bytes) -> Problem | None:
        """The public error an engine's answer means; None: as R-75 has it."""
        ...

    def is_loading(self, status: int, body: bytes) -> bool:
        """Is this answer the engine's own "still loading" (R-45)?"""
        ...

    def describe_break(self, lines: Sequence[str]) -> BreakCause | None:
        """Why a stream broke, from the session's last lines; None: no opinion."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Totals and gauges read from an engine's metrics; shown and counted, never decided by (E-64)."""

    running: float | None = None
    waiting: float | None = None
    prompt_tokens_total: float | None = None
    completion_tokens_total: float | None = None


class Adapter(Protocol):
    """Our code for one engine."""

    @property
    def id(self) -> EngineId: ...
    @property
    def contract(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def traits(self) -> Traits: ...
    @property
    def settings(self) -> type[Any]:
        """The pydantic model of this engine's settings."""
        ...

    @property
    def searches(self) -> tuple[Search, ...]:
        """What to look for on a host: programs on the search path and importable modules."""
        ...

    def probe_commands(self, at: InstallationSite) -> tuple[ProbeCommand, ...]: ...
    def read_build(self, at: InstallationSite, outputs: Mapping[str, Captured]) -> Build | BuildRefused: ...
    def refuse_model(self, facts: ModelFacts, settings: Any, build: Build | None) -> tuple[Reason, ...]: ...
    def wishes(self, settings: Any) -> EngineWishes:
        """What the settings ask of the planner, in its own words; None where the planner decides."""
        ...

    def profile(self, build: Build | None, hardware: Hardware) -> MemoryProfile: ...
    def capabilities(self, facts: ModelFacts, settings: Any, build: Build | None) -> Capabilities: ...
    def load_allowance_s(self, weight_bytes: int, settings: Any) -> float: ...
    def launch(self, plan: LaunchPlan, site: Site) -> Launch: ...
    def startup(self, plan: LaunchPlan, build: Build | None) -> Startup: ...
    def read_line(self, text: str, seen: Seen) -> Seen: ...
    def judge_ready(self, seen: ReadySeen) -> Accepted | Verdict: ...
    def explain(self, seen: ExitSeen) -> Verdict: ...
    def wire(self, plan: LaunchPlan, accepted: Accepted) -> Wire: ...
    def read_metrics(self, text: str) -> Sample: ...
