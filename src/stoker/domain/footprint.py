"""Bytes a session takes per pool (M-35): the records. `stoker.domain.pricing` fills them.

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
    """Constants of one engine build and backend (M-36).

    ``cell_step``: windows are rounded up to this many cells. ``window_margin``: sliding layers keep a micro-batch
    beyond their window. ``compute_factor`` and ``host_fixed_bytes`` 0: no scratch, no process term. Types on
    ``repack_types`` are kept twice under mmap (M-41). ``kv_quant_sensitive``: architectures that lose by a quantised
    cache (M-59).
    """

    engine: str = ""
    backend: str = "cpu"
    cell_step: int = 1
    host_fixed_bytes: int = 0
    fixed_bytes: int = 0
    compute_factor: float = 0.0
    repack_types: frozenset[str] = frozenset()
    value_copy: bool = False
    logits_rows: bool = False
    window_margin: bool = True
    kv_quant_sensitive: frozenset[str] = frozenset()


NEUTRAL = MemoryProfile(window_margin=False)
