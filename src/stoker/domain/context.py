"""The one planner: what a launch will be, priced (M-55 to M-60).

Preview, admission, launch flags and restarts call `plan_launch`; no other code derives a window, a slot count, a KV
type or an engine memory flag. It is pure and total: every input yields a plan or a shortfall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.domain.footprint import Footprint, MemoryProfile
from stoker.domain.models import ModelFacts
from stoker.ids import EngineId, PoolId


@dataclass(frozen=True, slots=True)
class EngineWishes:
    """What an engine's settings fix of a plan. None: the planner decides."""

    kv_type_k: str | None = None
    kv_type_v: str | None = None
    flash_attention: bool | None = None
    batch_tokens: int | None = None
    micro_batch_tokens: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    use_mmap: bool = True
    checkpoints: int | None = None
    cache_ram_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything the planner needs that does not change with the world: model, engine, settings.

    ``declared_bytes`` is the operator's own price (M-45). ``physical_cores`` is 0 where nobody can tell.
    """

    deployment: str
    engine: EngineId
    model_path: str
    facts: ModelFacts
    settings: Any
    wishes: EngineWishes
    profile: MemoryProfile
    context_tokens: int | None = None
    slots: int | None = None
    declared_bytes: int | None = None
    context_floor_tokens: int = 8192
    task: str = "generate"
    cores: int = 1
    ram_total_bytes: int = 0
    physical_cores: int = 0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What is previewed, reserved and launched. Adapters render it and derive nothing (E-4).

    ``context_tokens`` is of one sequence; ``digest`` is equal for equal plans.
    """

    engine: EngineId
    deployment: str
    model_path: str
    facts: ModelFacts
    settings: Any
    context_tokens: int
    slots: int
    kv_type_k: str
    kv_type_v: str
    flash_attention: bool
    batch_tokens: int
    micro_batch_tokens: int
    gpu_layers: int
    threads: int
    use_mmap: bool
    cache_ram_bytes: int
    checkpoints: int
    footprint: Footprint
    task: str = "generate"
    digest: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortfall:
    """No plan fits: the pool that is short, what the smallest plan needs, and the largest window that would fit."""

    pool: PoolId
    needed_bytes: int
    room_bytes: int
    largest_context_tokens: int | None = None
    would_fit_if: tuple[str, ...] = ()


def plan_launch(request: PlanRequest, room: Mapping[PoolId, int]) -> LaunchPlan | Shortfall:
    """The best plan whose charge fits ``room`` (bytes per pool), by the ladder of M-60.

    ``room`` is also what M-58 calls fast. Explicit parts are granted exactly or not at all.
    """
    from stoker.domain.ladder import climb  # the ladder speaks of the records above

    return climb(request, room)
