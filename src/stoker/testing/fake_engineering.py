"""An engine without a process: an adapter, models, sensors and HTTP for simulations.

The adapter is complete and pure like a real one; its models cost exactly what their name says, so that a test can
reason about memory in whole numbers. `FakeUnits` says what the engine does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.domain.context import EngineWishes, LaunchPlan
from stoker.domain.footprint import MemoryProfile
from stoker.domain.hardware import Hardware, Pool, PoolKind
from stoker.domain.models import ModelFacts, ModelFile, ModelKind, StoredModel, Weights
from stoker.engines.settings import EngineSettings
from stoker.errors import ErrorCode, error_for
from stoker.ids import RAM, EngineId, Generation, InstallationId, ModelId
from stoker.ports.engines import (
    CONTRACT,
    Abort,
    Accepted,
    Build,
    Capabilities,
    Captured,
    ConnectionFacts,
    Edits,
    ExitSeen,
    Installation,
    InstallationSite,
    Launch,
    Peek,
    ProbeCommand,
    ProbeRoute,
    Problem,
    ReadySeen,
    Reason,
    Route,
    RoutePolicy,
    Sample,
    Search,
    Seen,
    Site,
    Stage,
    Startup,
    Traits,
    Verdict,
)  # fmt: skip
from stoker.ports.units import Endpoint
from stoker.runtime.tickets import Door

MIB = 1 << 20
FAKE = EngineId("fake")
_LOADED = re.compile(r"loaded (\d+) %")


@dataclass(frozen=True, slots=True)
class FakeWire:
    policy: RoutePolicy = RoutePolicy(frozenset({Route("POST", "/v1/chat/completions")}))
    connection: ConnectionFacts = ConnectionFacts()
    abort: Abort = Abort()

    def edit(self, route: Route, peek: Peek) -> Edits | Problem | None:
        return None

    def map_error(self, route: Route, status: int, body: bytes) -> Problem | None:
        return None

    def is_loading(self, status: int, body: bytes) -> bool:
        return False

    def describe_break(self, lines: Sequence[str]) -> None:
        return None


@dataclass(frozen=True, slots=True)
class FakeAdapter:
    """Ready when its health route says so; exits mean what their code says: 0 crash, 3 out of memory, 4 never works.

    ``allowance_s`` is its base of S-102; ``judge`` may refuse a ready engine (S-107).
    """

    id: EngineId = FAKE
    contract: int = CONTRACT
    title: str = "the fake engine"
    traits: Traits = Traits(
        frozenset({"fake"}), frozenset({"generate"}), frozenset({"process"}), endpoints=frozenset({"unix"}),
        token="launcher",
    )  # fmt: skip
    settings: type[Any] = EngineSettings
    searches: tuple[Search, ...] = ()
    allowance_s: float = 60.0
    judge: Callable[[ReadySeen], Verdict | None] = lambda _: None

    def probe_commands(self, at: InstallationSite) -> tuple[ProbeCommand, ...]:
        return ()

    def read_build(self, at: InstallationSite, outputs: Mapping[str, Captured]) -> Build:
        return Build(FAKE, "1", frozenset(), digest="fake")

    def refuse_model(self, facts: ModelFacts, settings: Any, build: Build | None) -> tuple[Reason, ...]:
        return ()

    def wishes(self, settings: Any) -> EngineWishes:
        return EngineWishes(cache_ram_bytes=0, checkpoints=0)

    def profile(self, build: Build | None, hardware: Hardware) -> MemoryProfile:
        return MemoryProfile(engine="fake")

    def capabilities(self, facts: ModelFacts, settings: Any, build: Build | None) -> Capabilities:
        return Capabilities()

    def load_allowance_s(self, weight_bytes: int, settings: Any) -> float:
        return self.allowance_s

    def launch(self, plan: LaunchPlan, site: Site) -> Launch:
        endpoint = Endpoint(socket=f"{site.life_dir}/e.sock")
        argv = ("fake-engine", plan.model_path)
        return Launch(argv, {"FAKE_TOKEN": site.token or ""}, {}, endpoint, 10.0, argv)

    def startup(self, plan: LaunchPlan, build: Build | None) -> Startup:
        return Startup(ProbeRoute("/health"), ProbeRoute("/health"))

    def read_line(self, text: str, seen: Seen) -> Seen:
        if text.startswith("fatal:"):
            return Seen(seen.stage, fatal=text)
        if text == "warming up":
            return Seen(Stage.WARMING_UP)
        if (loaded := _LOADED.fullmatch(text)) is not None:
            return replace(seen, percent=int(loaded[1]))
        return seen

    def judge_ready(self, seen: ReadySeen) -> Accepted | Verdict:
        return self.judge(seen) or Accepted(seen.plan.slots, seen.plan.context_tokens, Capabilities())

    def explain(self, seen: ExitSeen) -> Verdict:
        code = seen.exit.code if seen.exit is not None else None
        kind = {3: "host-out-of-memory", 4: "model-unsupported"}.get(code or 0, "engine-exited")
        how = f"status {code}" if seen.exit is None or not seen.exit.signal else f"signal {seen.exit.signal}"
        return Verdict(kind, "other", f"The fake engine exited with {how}.")

    def wire(self, plan: LaunchPlan, accepted: Accepted) -> FakeWire:
        return FakeWire()

    def read_metrics(self, text: str) -> Sample:
        return Sample()


def fake_installation() -> Installation:
    build = Build(FAKE, "1", frozenset(), digest="fake")
    return Installation(InstallationId("fake-1"), FAKE, InstallationSite("binary", "/fake/engine"), build)


def fake_model(name: str, mib: int) -> StoredModel:
    """A model whose only cost is ``mib`` MiB of system memory (declared by the deployment)."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    facts = ModelFacts(
        ModelKind.TEXT, "fake", "fake", name, "F16", digest, (ModelFile(f"{name}.fake", mib * MIB),), 4096, 100, 0, 64,
        1, 64, (), Weights(other=mib * MIB),
    )  # fmt: skip
    return StoredModel(ModelId(digest[:32]), f"file:/models/{name}.fake", (name,), f"/models/{name}.fake", facts)


@dataclass(slots=True)
class FakeModels:
    """Models by name; ``missing`` ones have lost their file since."""

    models: dict[str, StoredModel] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    def list(self) -> tuple[StoredModel, ...]:
        return tuple(self.models.values())

    def resolve(self, reference: str) -> StoredModel:
        if reference in self.models:
            return self.models[reference]
        raise error_for(ErrorCode.MODEL_NOT_FOUND, f"There is no model {reference!r}.", remedy="See `stoker list`.")

    def check_unchanged(self, model: StoredModel) -> None:
        if model.names[0] in self.missing:
            raise error_for(ErrorCode.MODEL_FILE_MISSING, f"The file of {model.names[0]} is gone.")


@dataclass(slots=True)
class FakeDevices:
    """One pool of system memory; ``free_bytes`` is the test's to set."""

    total_bytes: int = 24 << 30
    free_bytes: int = 24 << 30

    def read(self) -> Hardware:
        pool = Pool(RAM, PoolKind.RAM, "system memory", self.total_bytes, self.free_bytes, source="fake")
        return Hardware({RAM: pool}, cores=2)


@dataclass(slots=True)
class FakeUpstreams:
    """Open exchanges per life; closing a life calls back whoever holds one, with the code they end with."""

    doors: dict[Generation, Door] = field(default_factory=dict)
    holders: dict[Generation, list[Callable[[str], None]]] = field(default_factory=dict)

    def open(self, door: Door) -> None:
        self.doors[door.generation] = door

    def hold(self, generation: Generation, ended: Callable[[str], None]) -> bool:
        """An exchange begins; False if its life has closed meanwhile."""
        if generation not in self.doors:
            return False
        self.holders.setdefault(generation, []).append(ended)
        return True

    async def close(self, generation: Generation, code: str) -> None:
        self.doors.pop(generation, None)
        for ended in self.holders.pop(generation, []):
            ended(code)
