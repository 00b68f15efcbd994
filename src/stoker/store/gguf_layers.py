"""Layers of a GGUF model, merged into groups of equal ones (M-7 to M-12).

Per-layer lists are read layer by layer; the first, largest or mean entry never stands for all. What a header leaves
open is flagged, not guessed in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from stoker.domain.models import LayerGroup, LayerKind
from stoker.errors import ErrorCode, StoreError
from stoker.store.gguf import ArrayOf

MAX_LAYERS = 65_536

# Architectures whose files give a window but no pattern: every n-th layer is full (M-9).
SLIDING_PERIOD = {
    "cohere2": 4,
    "exaone4": 4,
    "gemma-embedding": 6,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
}


@dataclass(frozen=True, slots=True)
class ArchKeys:
    """The keys of one architecture, by what follows its prefix. Values of the wrong kind count as absent."""

    architecture: str
    keys: Mapping[str, Any]
    file: str

    def raw(self, name: str) -> Any:
        return self.keys.get(f"{self.architecture}.{name}")

    def number(self, name: str, default: int = 0) -> int:
        """A whole number, or the largest of a list; negative ones and fractions count as absent."""
        value = self.raw(name)
        if isinstance(value, tuple):
            return max((_whole(item) for item in value), default=default)
        return _whole(value, default) if value is not None else default

    def per_layer(self, name: str, layers: int, default: int) -> tuple[int, ...]:
        """One number a layer: a scalar for all, or a list that has at least as many entries as there are layers."""
        value = self.raw(name)
        if isinstance(value, ArrayOf):
            raise self._inconsistent(name, value.count, layers)
        if not isinstance(value, tuple):
            return (self.number(name, default),) * layers
        if len(value) < layers:
            raise self._inconsistent(name, len(value), layers)
        return tuple(_whole(item) for item in value[:layers])

    def _inconsistent(self, name: str, entries: int, layers: int) -> StoreError:
        return StoreError(
            ErrorCode.FACTS_INCONSISTENT,
            f"{self.file}: {self.architecture}.{name} has {entries} entries for {layers} layers.",
            remedy="Get the file again, or a newer conversion of this model.",
            details={"key": name, "entries": entries, "layers": layers},
        )


def _whole(value: Any, default: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return default
    if value != value or value < 0 or value >= 1 << 63:  # noqa: PLR0124 - not a number is unequal to itself
        return default
    return int(value)


@dataclass(frozen=True, slots=True)
class Layers:
    groups: tuple[LayerGroup, ...]
    draft_layers: int
    heads: int
    ff_dim: int
    uncertain: tuple[str, ...]


def read_layers(keys: ArchKeys) -> Layers:
    """Groups of equal layers in order of first appearance, next-token layers left out (M-12)."""
    blocks = keys.number("block_count")
    if blocks > MAX_LAYERS:
        raise StoreError(
            ErrorCode.MODEL_FILE_CORRUPT,
            f"{keys.file}: {keys.architecture}.block_count says {blocks} layers, at most {MAX_LAYERS} are possible.",
            remedy="Get the file again; it is damaged.",
            details={"field": "block_count", "limit": MAX_LAYERS, "reason": "bounds"},
        )
    draft = min(keys.number("nextn_predict_layers"), blocks)
    layers = blocks - draft
    flags: list[str] = []
    heads = keys.per_layer("attention.head_count", layers, 0)
    ff = keys.per_layer("feed_forward_length", layers, 0)
    found = _attention(keys, layers, heads, flags)
    found = _shared(found, keys.number("attention.shared_kv_layers"))
    return Layers(merge(found), draft, max(heads, default=0), max(ff, default=0), tuple(flags))


def _attention(keys: ArchKeys, layers: int, heads: tuple[int, ...], flags: list[str]) -> list[LayerGroup]:
    most_heads = max(heads, default=0)
    head_dim = keys.number("embedding_length") // most_heads if most_heads else 0
    kv_heads = keys.per_layer("attention.head_count_kv", layers, 0)
    if keys.raw("attention.head_count_kv") is None:
        kv_heads = heads
    k_dim = keys.number("attention.key_length", head_dim) or head_dim
    v_dim = keys.number("attention.value_length", head_dim) or head_dim
    sliding = _sliding(keys, layers, flags)
    state = _state(keys)
    every = keys.number("full_attention_interval")
    rank = keys.number("attention.kv_lora_rank")
    rope = keys.number("rope.dimension_count")
    shared_by_all = LayerGroup(
        1,
        LayerKind.FULL,
        indexer=keys.number("attention.indexer.key_length"),
        loops=max(1, keys.number("num_loops", 1)),
    )
    is_mixed = state is not None and every <= 1 and bool(kv_heads) and all(kv_heads)
    if is_mixed:
        flags.append("state-beside-attention-assumed")
    if _is_expanded(keys, most_heads, kv_heads, (k_dim, v_dim)):
        flags.append("latent-expanded")
    found: list[LayerGroup] = []
    for i, kv in enumerate(kv_heads):
        is_state = (every > 1 and (i + 1) % every != 0) or not kv
        if is_state:
            base = state or LayerGroup(1, LayerKind.SHARED)
            found.append(replace(base, loops=shared_by_all.loops))
        elif rank and kv == 1:
            nope = max(0, keys.number("attention.key_length_mla") - rope)
            found.append(
                replace(shared_by_all, kind=LayerKind.LATENT, kv_heads=1, k_dim=rank + rope, rank=rank, nope=nope)
            )
        elif sliding[i]:
            found.append(
                replace(
                    shared_by_all,
                    kind=LayerKind.SLIDING,
                    kv_heads=kv,
                    k_dim=keys.number("attention.key_length_swa", k_dim),
                    v_dim=keys.number("attention.value_length_swa", v_dim),
                    window=keys.number("attention.sliding_window"),
                )
            )
        else:
            found.append(replace(shared_by_all, kv_heads=kv, k_dim=k_dim, v_dim=v_dim))
        if is_mixed and state is not None:
            found[-1] = replace(found[-1], state_elements=state.state_elements, inner=state.inner)
    return found


def _is_expanded(keys: ArchKeys, heads: int, kv_heads: tuple[int, ...], dims: tuple[int, int]) -> bool:
    """A cache with as many KV heads as query heads, of a model made for one compressed vector (M-10).

    The older form has no rank; keys that are wider than values give it away.
    """
    is_whole = heads > 1 and bool(kv_heads) and min(kv_heads) == heads
    has_latent_keys = keys.number("attention.kv_lora_rank") > 0 or keys.number("attention.key_length_mla") > 0
    return is_whole and (has_latent_keys or dims[0] > dims[1] > 0)


def _sliding(keys: ArchKeys, layers: int, flags: list[str]) -> tuple[bool, ...]:
    """Which layers keep only a window (M-9)."""
    none = (False,) * layers
    if not keys.number("attention.sliding_window"):
        return none
    pattern = keys.raw("attention.sliding_window_pattern")
    if isinstance(pattern, (tuple, ArrayOf)):
        keys.per_layer("attention.sliding_window_pattern", layers, 0)  # refuses a list that is too short
        return tuple(bool(item) for item in pattern[:layers]) if isinstance(pattern, tuple) else none
    period = keys.number("attention.sliding_window_pattern")
    if not period:
        period = SLIDING_PERIOD.get(keys.architecture, 0)
        flags.append("sliding-pattern-assumed" if period else "sliding-pattern-unknown")
    return tuple((i + 1) % period != 0 for i in range(layers)) if period else none


def _state(keys: ArchKeys) -> LayerGroup | None:
    """A layer that keeps a state in place of a cache, if this architecture has any (M-11)."""
    embed = keys.number("embedding_length")
    inner, size = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    if inner and size:
        conv = max(0, keys.number("ssm.conv_kernel") - 1)
        elements = conv * (inner + 2 * keys.number("ssm.group_count") * size) + inner * size
        return LayerGroup(1, LayerKind.RECURRENT, state_elements=elements, inner=inner)
    taps = keys.number("shortconv.l_cache")
    if taps:
        return LayerGroup(1, LayerKind.CONV, state_elements=(taps - 1) * embed)
    head = keys.number("wkv.head_size")
    if head:
        elements = keys.number("token_shift_count", 2) * embed + embed * head
        return LayerGroup(1, LayerKind.RECURRENT, state_elements=elements)
    return None


def _shared(layers: list[LayerGroup], last: int) -> list[LayerGroup]:
    """The last layers that read the cache of earlier ones (M-12)."""
    keep = max(0, len(layers) - last)
    return [layer if i < keep else LayerGroup(1, LayerKind.SHARED) for i, layer in enumerate(layers)]


def merge(layers: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Equal layers as one group with their count, in order of first appearance."""
    counts: dict[LayerGroup, int] = {}
    for layer, run in groupby(layers):
        counts[layer] = counts.get(layer, 0) + sum(1 for _ in run)
    return tuple(replace(layer, count=count) for layer, count in counts.items())
