"""What a llama.cpp session takes in system memory, term by term (M-35 to M-42, M-45).

Pure in facts, settings and memory profile; charges round up. It knows nothing of budgets or of other sessions, and
cards are not priced here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from stoker.domain.footprint import Footprint, MemoryProfile, Term
from stoker.domain.kv_cache import (
    BLOCK_BYTES,
    cache_bytes,
    cells,
    checkpoint_bytes,
    is_windowed,
    sliding_cells,
    state_bytes,
)
from stoker.domain.models import LayerKind, ModelFacts
from stoker.ids import RAM

KIB, MIB = 1 << 10, 1 << 20
HOST_FIXED_CPU_BYTES = 30 * MIB  # M-40, the calibrated row: the process of the CPU backend


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of a plan that cost memory. ``context_tokens`` is of one sequence."""

    context_tokens: int
    slots: int = 1
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attention: bool = True
    micro_batch_tokens: int = 512
    use_mmap: bool = True
    cache_ram_bytes: int = 0
    checkpoints: int = 0


def price_ram(
    facts: ModelFacts, profile: MemoryProfile, shape: Shape, *, declared_bytes: int | None = None
) -> Footprint:
    """The footprint of one session with all layers in system memory.

    ``declared_bytes`` is the operator's own figure and stands in place of every structural term. Facts without a
    tensor table or geometry are priced by M-45 and flagged.
    """
    if declared_bytes is not None:
        terms: tuple[Term, ...] = (Term(RAM, "declared", declared_bytes),)
        return Footprint(terms, {RAM: declared_bytes}, facts.uncertain, "declared")
    terms = tuple(Term(RAM, *part) for part in _parts(facts, profile, shape) if part[1])
    return Footprint(terms, {RAM: sum(term.bytes for term in terms)}, _uncertain(facts))


def charge_ram(facts: ModelFacts, profile: MemoryProfile, shape: Shape, *, declared_bytes: int | None = None) -> int:
    """The charge of `price_ram` alone, for searches that price many shapes."""
    return sum(part[1] for part in _parts(facts, profile, shape)) if declared_bytes is None else declared_bytes


def _parts(facts: ModelFacts, profile: MemoryProfile, shape: Shape) -> tuple[tuple[str, int, str, str], ...]:
    """Name, bytes, when and backing of every term; zeros included."""
    backing = "mapped" if shape.use_mmap else "anonymous"
    weights, repacked = _weights(facts, profile, shape)
    checkpoints = shape.checkpoints and shape.checkpoints * checkpoint_cost(facts, profile, shape)
    return (
        ("weights", weights, "load", backing),
        ("repacked", repacked, "load", "anonymous"),
        ("kv-cache", _kv(facts, profile, shape), "load", "anonymous"),
        ("state", shape.slots * state_bytes(facts), "load", "anonymous"),
        ("compute", compute_bytes(facts, profile, shape), "load", "anonymous"),
        ("output", _output(facts, profile, shape), "load", "anonymous"),
        ("process", _process(facts, profile, shape), "load", "anonymous"),
        ("prompt-cache", shape.cache_ram_bytes, "lazy", "anonymous"),
        ("checkpoints", checkpoints, "lazy", "anonymous"),
    )


def checkpoint_cost(facts: ModelFacts, profile: MemoryProfile, shape: Shape) -> int:
    """Bytes of one further checkpoint in every slot (M-42)."""
    return shape.slots * checkpoint_bytes(facts, profile, shape.kv_type_k, shape.kv_type_v)


def has_geometry(facts: ModelFacts) -> bool:
    return bool(facts.layer_groups)


def fallback_weights_bytes(file_bytes: int) -> int:
    """M-45, no tensor table: ⌈1.10 W⌉ + 256 MiB."""
    return -(-11 * file_bytes // 10) + 256 * MIB


def fallback_token_bytes(file_bytes: int, kv_type_k: str = "f16", kv_type_v: str = "f16") -> int:
    """M-45, no geometry: clamp(W / 100,000, 160 KiB, 1 MiB) for f16, scaled by the element sizes of M-37."""
    whole = min(max(file_bytes // 100_000, 160 * KIB), MIB)
    return -(-whole * (BLOCK_BYTES[kv_type_k] + BLOCK_BYTES[kv_type_v]) // (2 * BLOCK_BYTES["f16"]))


def compute_bytes(facts: ModelFacts, profile: MemoryProfile, shape: Shape) -> int:
    """Scratch of one micro-batch (M-39)."""
    if not profile.compute_factor:
        return 0
    u, n = shape.micro_batch_tokens, cells(shape.context_tokens, profile)
    groups = facts.layer_groups
    windowed = [group for group in groups if is_windowed(group)]
    c = max((min(n, sliding_cells(group, u, profile)) for group in windowed), default=0)
    experts = facts.experts
    ff = max(facts.ff_dim, experts.used * experts.ff + experts.shared_ff)
    q = max(((facts.heads + 2 * g.kv_heads) * max(g.k_dim, g.v_dim) for g in groups if g.kv_heads), default=0)
    inner = max((group.inner for group in groups), default=0)
    latent = max(
        (g.nope + 2 * g.rank + 2 * (g.k_dim - g.rank) for g in groups if g.kind is LayerKind.LATENT), default=0
    )
    active = 4 * (5 * facts.embed_dim + max(3 * ff, q, 5 * inner, facts.heads * latent))
    if shape.flash_attention:
        scratch = u * (2 * n + 2 * c + active)
    else:
        scratch = u * (4 * n + 4 * c + max(4 * facts.heads * n + 4 * (5 * facts.embed_dim + q), active))
    return ceil(scratch * profile.compute_factor) if profile.compute_factor != 1.0 else scratch


def _weights(facts: ModelFacts, profile: MemoryProfile, shape: Shape) -> tuple[int, int]:
    """M-41: the file's tensors, and those held a second time: under mmap a repacked one is copied."""
    total = facts.weights.total
    if not total:
        return fallback_weights_bytes(facts.total_bytes), 0
    if not (shape.use_mmap and profile.repack_types):
        return total, 0
    on_list = {name.lower() for name in profile.repack_types}
    return total, sum(amount for name, amount in facts.weights.by_type if name.lower() in on_list)


def _kv(facts: ModelFacts, profile: MemoryProfile, shape: Shape) -> int:
    if not has_geometry(facts):
        per_token = fallback_token_bytes(facts.total_bytes, shape.kv_type_k, shape.kv_type_v)
        return shape.slots * cells(shape.context_tokens, profile) * per_token
    return cache_bytes(
        facts,
        profile,
        context_tokens=shape.context_tokens,
        slots=shape.slots,
        kv_type_k=shape.kv_type_k,
        kv_type_v=shape.kv_type_v,
        micro_batch_tokens=shape.micro_batch_tokens,
    )


def _output(facts: ModelFacts, profile: MemoryProfile, shape: Shape) -> int:
    """M-40: a row of logits a slot, and for some builds of every token in the micro-batch."""
    if not profile.compute_factor:
        return 0
    rows = shape.slots + (shape.micro_batch_tokens if profile.logits_rows else 0)
    return 4 * facts.vocab_size * rows


def _process(facts: ModelFacts, profile: MemoryProfile, shape: Shape) -> int:
    """M-40: the process itself, its vocabulary tables and its samplers."""
    if not profile.host_fixed_bytes:
        return 0
    slots, vocab = shape.slots, facts.vocab_size
    tables = 208 * vocab + 224 * facts.merges_count
    return profile.host_fixed_bytes + tables + 16 * vocab * slots + 160 * shape.context_tokens * slots


def _uncertain(facts: ModelFacts) -> tuple[str, ...]:
    missing = {"no-geometry": not has_geometry(facts), "no-tensor-table": not facts.weights.total}
    return (*facts.uncertain, *(flag for flag, on in missing.items() if on and flag not in facts.uncertain))
