"""Which engines there are: the built-in ones in order, then foreign ones from entry points (E-8 to E-11).

A built-in adapter that breaks a rule fails the start: that is a defect of ours. A foreign one is listed as broken and
everything else works. The registry never changes after it was made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from stoker.engines.settings import EngineSettings, aliases, marks
from stoker.errors import ErrorCode, UsageError
from stoker.ids import EngineId
from stoker.ports.engines import CONTRACT, Adapter

GROUP = "stoker.engines.v1"
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_MEMBERS = (
    "title", "traits", "settings", "searches", "probe_commands", "read_build", "refuse_model", "wishes", "profile",
    "capabilities", "load_allowance_s", "launch", "startup", "read_line", "judge_ready", "explain", "wire",
    "read_metrics",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Broken:
    """A foreign adapter that is not used, and why."""

    name: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Registry:
    """Adapters in priority order. ``sources`` says where each came from: ``built-in`` or a distribution."""

    adapters: tuple[Adapter, ...]
    broken: tuple[Broken, ...] = ()
    sources: Mapping[EngineId, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self.adapters)

    def get(self, engine: str) -> Adapter:
        """The adapter of that id. Raises `UsageError` ``engine-not-found``."""
        for adapter in self.adapters:
            if adapter.id == engine:
                return adapter
        known = ", ".join(adapter.id for adapter in self.adapters)
        raise UsageError(
            ErrorCode.ENGINE_NOT_FOUND,
            f"There is no engine {engine[:64]!r}; known are: {known}.",
            param="engine",
            remedy="Name one of them, or leave the engine out.",
        )


def built_in() -> tuple[Adapter, ...]:
    from stoker.engines.llama_cpp.adapter import ADAPTER as LLAMA_CPP  # reads its descriptor, so not at import

    return (LLAMA_CPP,)


def load_registry(own: Iterable[Adapter] | None = None, foreign: Iterable[EntryPoint] | None = None) -> Registry:
    """All adapters of this environment. Raises AssertionError if a built-in one breaks the rules."""
    adapters = tuple(built_in() if own is None else own)
    for adapter in adapters:
        if faults := check_adapter(adapter):
            raise AssertionError(f"built-in adapter {getattr(adapter, 'id', adapter)}: {faults[0]}")
    if len({adapter.id for adapter in adapters}) != len(adapters):
        raise AssertionError("two built-in adapters have one id")
    points = entry_points(group=GROUP) if foreign is None else foreign
    taken = {adapter.id: "built-in" for adapter in adapters}
    loaded, broken = _load_foreign(sorted(points, key=lambda point: (_source(point), point.name)))
    counts = Counter(adapter.id for _, adapter in loaded)
    for point, adapter in loaded:
        if taken.get(adapter.id) == "built-in":
            broken.append(Broken(point.name, _source(point), f"{adapter.id} is a built-in engine"))
        elif counts[adapter.id] > 1:
            broken.append(Broken(point.name, _source(point), f"{counts[adapter.id]} adapters claim {adapter.id}"))
        else:
            taken[adapter.id] = _source(point)
            adapters += (adapter,)
    return Registry(adapters, tuple(broken), taken)


def check_adapter(adapter: Any) -> list[str]:
    """What is wrong with an adapter's statements about itself (E-9); empty: nothing."""
    identity = getattr(adapter, "id", None)
    if not isinstance(identity, str) or _ID.fullmatch(identity) is None:
        return [f"its id {identity!r} is not a lower-case word of at most 32 characters"]
    if getattr(adapter, "contract", None) != CONTRACT:
        return [f"it speaks contract {getattr(adapter, 'contract', None)!r}; this Stoker speaks {CONTRACT}"]
    if missing := [name for name in _MEMBERS if not hasattr(adapter, name)]:
        return [f"it lacks {', '.join(missing)}"]
    model = adapter.settings
    if not (isinstance(model, type) and issubclass(model, EngineSettings)):
        return ["its settings do not derive from EngineSettings"]
    faults = [f"setting {name} is not marked" for name in model.model_fields if name not in marks(model)]
    faults += [f"setting {name} has no text" for name, info in model.model_fields.items() if not info.description]
    words = aliases(model)
    faults += [f"alias {word} is also a field" for word in words if word in model.model_fields]
    if not adapter.traits.formats or not adapter.traits.tasks:
        faults.append("it declares no format or no task")
    return faults


def _load_foreign(points: Iterable[EntryPoint]) -> tuple[list[tuple[EntryPoint, Adapter]], list[Broken]]:
    loaded: list[tuple[EntryPoint, Adapter]] = []
    broken: list[Broken] = []
    for point in points:
        adapter, faults = _load(point.load)
        if faults:
            broken.append(Broken(point.name, _source(point), faults[0]))
        else:
            loaded.append((point, adapter))
    return loaded, broken


def _load(load: Callable[[], Any]) -> tuple[Any, list[str]]:
    """A stranger's code may fail in any way, and none of it may stop the start (E-9)."""
    try:
        adapter = load()()
        return adapter, check_adapter(adapter)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - the border to code that is not ours
        return None, [f"{type(exc).__name__}: {str(exc)[:200]}"]


def _source(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"
