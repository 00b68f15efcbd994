"""Memory pools of this host and what is known of each now (M-19 to M-25)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stoker.ids import RAM, PoolId


class PoolKind(StrEnum):
    VRAM = "vram"
    UNIFIED = "unified"
    RAM = "ram"


class PoolState(StrEnum):
    OK = "ok"
    STALE = "stale"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Pool:
    """One memory that fills up. All amounts in bytes; ``age_s`` is the age of the reading."""

    pool_id: PoolId
    kind: PoolKind
    name: str
    total_bytes: int
    free_bytes: int
    state: PoolState = PoolState.OK
    driver_reserved_bytes: int = 0
    source: str = ""
    age_s: float = 0.0

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class Hardware:
    """All pools of the host; ``shape`` is ``discrete``, ``unified`` or ``cpu`` (M-22).

    ``cores`` are those this process may run on; ``physical_cores`` is 0 where nobody can tell.
    """

    pools: dict[PoolId, Pool] = field(default_factory=dict)
    shape: str = "cpu"
    cores: int = 1
    physical_cores: int = 0

    @property
    def ram(self) -> Pool:
        return self.pools[RAM]
