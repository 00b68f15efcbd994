"""Bytes a session takes per pool (M-35): the records; pricing rules stand beside them as they grow.

A footprint is a pure function of facts, settings, memory profile and placement. Charges round up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.ids import PoolId


@dataclass(frozen=True, slots=True)
class Term:
    """One priced part. ``when``: load or lazy; ``backing``: anonymous, mapped or device."""

    pool: PoolId
    name: str
    bytes: int
    when: str = "load"
    backing: str = "anonymous"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Priced parts and their sums per pool, in bytes. ``source``: structural, near, measured or declared."""

    terms: tuple[Term, ...]
    start_need: Mapping[PoolId, int] = field(default_factory=dict)
    uncertain: tuple[str, ...] = ()
    source: str = "structural"

    @property
    def charge(self) -> dict[PoolId, int]:
        charge: dict[PoolId, int] = {}
        for term in self.terms:
            charge[term.pool] = charge.get(term.pool, 0) + term.bytes
        return charge


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Constants of one engine build and backend (M-36). Defaults are the neutral profile."""

    engine: str = ""
    backend: str = "cpu"
    cell_step: int = 1
    host_fixed_bytes: int = 0
    fixed_bytes: int = 0
    compute_factor: float = 0.0
    repack_types: frozenset[str] = frozenset()
    value_copy: bool = False
    logits_rows: bool = False
