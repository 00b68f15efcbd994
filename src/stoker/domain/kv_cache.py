"""Bytes of attention caches and layer states (M-37, M-38, M-42): exact, per group of equal layers.

A row is rounded up to whole 32-element blocks. Sliding layers never hold more than their window and a margin.
"""

from __future__ import annotations

from stoker.domain.footprint import MemoryProfile
from stoker.domain.models import LayerGroup, LayerKind, ModelFacts

BLOCK = 32
STATE_BYTES = 4

# Bytes of 32 elements of each cache type (M-37).
BLOCK_BYTES = {
    "f32": 128,
    "f16": 64,
    "bf16": 64,
    "fp8": 32,
    "q8_0": 34,
    "q5_1": 24,
    "q5_0": 22,
    "q4_1": 20,
    "q4_0": 18,
    "iq4_nl": 18,
}
WHOLE_TYPES = frozenset({"f32", "f16", "bf16", "fp8"})

_CACHING = frozenset({LayerKind.FULL, LayerKind.SLIDING, LayerKind.CHUNKED, LayerKind.LATENT})
_WINDOWED = frozenset({LayerKind.SLIDING, LayerKind.CHUNKED})


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def has_cache(group: LayerGroup) -> bool:
    return group.kind in _CACHING and bool(group.kv_heads or group.kind is LayerKind.LATENT)


def is_windowed(group: LayerGroup) -> bool:
    return group.kind in _WINDOWED and group.window > 0


def row_bytes(elements: int, kv_type: str) -> int:
    """Bytes of one row of ``elements``; quantised rows are whole blocks, the others are exact."""
    if kv_type in WHOLE_TYPES:
        return elements * BLOCK_BYTES[kv_type] // BLOCK
    return -(-elements // BLOCK) * BLOCK_BYTES[kv_type]


def widths(group: LayerGroup, *, value_copy: bool) -> tuple[int, int]:
    """Key and value elements of one token in one layer (M-10, M-12)."""
    if group.kind is LayerKind.LATENT:
        return group.k_dim + group.indexer, (group.v_dim or group.rank) if value_copy else group.v_dim
    return group.kv_heads * group.k_dim + group.indexer, group.kv_heads * group.v_dim


def can_quantise(facts: ModelFacts) -> bool:
    """A quantised type is impossible where a row is not whole blocks (M-37)."""
    return all(
        (group.kv_heads or 1) * dim % BLOCK == 0
        for group in facts.layer_groups
        if has_cache(group)
        for dim in (group.k_dim, group.v_dim)
    )


def token_bytes(group: LayerGroup, kv_type_k: str, kv_type_v: str, *, value_copy: bool = False) -> int:
    """Cache bytes of one token in all layers of ``group``."""
    if not has_cache(group):
        return 0
    keys, values = widths(group, value_copy=value_copy)
    return group.count * group.loops * (row_bytes(keys, kv_type_k) + row_bytes(values, kv_type_v))


def state_bytes(facts: ModelFacts) -> int:
    """Bytes of recurrent and convolution state of one slot (M-11)."""
    return STATE_BYTES * sum(g.count * g.loops * g.state_elements for g in facts.layer_groups)


def cells(context_tokens: int, profile: MemoryProfile) -> int:
    """Cells of one slot: the window in the engine's step."""
    return round_up(context_tokens, profile.cell_step)


def sliding_cells(group: LayerGroup, micro_batch_tokens: int, profile: MemoryProfile, *, sequences: int = 1) -> int:
    """Cells a sliding layer keeps at most, for ``sequences`` that share them."""
    margin = micro_batch_tokens if profile.window_margin else 0
    return round_up(group.window * sequences + margin, profile.cell_step)


def cache_bytes(
    facts: ModelFacts,
    profile: MemoryProfile,
    *,
    context_tokens: int,
    slots: int = 1,
    kv_type_k: str = "f16",
    kv_type_v: str = "f16",
    micro_batch_tokens: int = 512,
    is_unified: bool = False,
    is_full_size: bool = False,
) -> int:
    """Bytes of all caches of ``slots`` sequences (M-38), states not included.

    ``is_unified``: one pool of cells for all slots. ``is_full_size``: sliding layers keep every cell, on request.
    """
    sequences = slots if is_unified else 1
    copies = 1 if is_unified else slots
    n = cells(context_tokens, profile) * sequences
    total = 0
    for group in facts.layer_groups:
        held = n
        if is_windowed(group) and not is_full_size:
            held = min(n, sliding_cells(group, micro_batch_tokens, profile, sequences=sequences))
        total += held * token_bytes(group, kv_type_k, kv_type_v, value_copy=profile.value_copy)
    return copies * total


def checkpoint_bytes(facts: ModelFacts, profile: MemoryProfile, kv_type_k: str, kv_type_v: str) -> int:
    """One context checkpoint of one slot (M-42): window cells and state. 0 where no layer forgets."""
    windows = sum(
        group.window * token_bytes(group, kv_type_k, kv_type_v, value_copy=profile.value_copy)
        for group in facts.layer_groups
        if is_windowed(group)
    )
    return windows + state_bytes(facts)
