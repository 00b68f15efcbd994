"""What a model is, as far as its header tells: one record for every reader (M-1, M-2).

Nothing downstream looks at the file again. Equal layers are merged, so pricing is O(groups) and not O(layers).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stoker.ids import ModelId


class ModelKind(StrEnum):
    TEXT = "text"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    PROJECTOR = "projector"
    ADAPTER = "adapter"
    VOCAB_ONLY = "vocab-only"
    DRAFT_ONLY = "draft-only"
    OTHER = "other"


LOADABLE = frozenset({ModelKind.TEXT, ModelKind.EMBEDDING, ModelKind.RERANK})


class LayerKind(StrEnum):
    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    LATENT = "latent"
    RECURRENT = "recurrent"
    CONV = "conv"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """``count`` equal layers. Dimensions in elements; ``state_elements`` per layer and slot.

    ``rank`` and ``nope`` shape latent attention (M-10); ``inner`` is the width of a state layer (M-11); ``indexer``
    are further key elements per token; ``loops`` multiplies every cache and state (M-12).
    """

    count: int
    kind: LayerKind
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int = 0
    state_elements: int = 0
    rank: int = 0
    nope: int = 0
    inner: int = 0
    indexer: int = 0
    loops: int = 1


@dataclass(frozen=True, slots=True)
class Rope:
    type: str = "none"
    factor: float = 1.0
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    count: int = 0
    used: int = 0
    ff: int = 0
    shared_ff: int = 0


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Bytes of one block's tensors by what they are for."""

    attention_and_rest: int = 0
    dense_ffn: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        return self.attention_and_rest + self.dense_ffn + self.experts


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensor bytes by place (M-13). ``by_type`` sums block tensors per tensor type, for engines that repack some."""

    input_embedding: int = 0
    output: int = 0
    blocks: tuple[BlockWeights, ...] = ()
    other: int = 0
    by_type: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        blocks = sum([b.attention_and_rest + b.dense_ffn + b.experts for b in self.blocks])
        return self.input_embedding + self.output + blocks + self.other


@dataclass(frozen=True, slots=True)
class ModelFile:
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Everything later layers may know of a model's inside. Sizes in bytes, lengths in tokens or elements."""

    kind: ModelKind
    format: str
    architecture: str
    name: str
    quant_label: str
    content_id: str
    files: tuple[ModelFile, ...]
    context_native: int
    vocab_size: int
    merges_count: int
    embed_dim: int
    heads: int
    ff_dim: int
    layer_groups: tuple[LayerGroup, ...]
    weights: Weights
    rope: Rope = Rope()
    experts: Experts = Experts()
    draft_layers: int = 0
    tied_embedding: bool = False
    pooling: str | None = None
    has_chat_template: bool = False
    template_digest: str | None = None
    uncertain: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def layers(self) -> int:
        return sum(group.count for group in self.layer_groups)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model this host has: where its bytes lie and what its header says.

    ``path`` is the file (or part 1, or folder) as the engine gets it; ``reference`` is canonical, ``names`` are what
    people may type for it. ``stamps`` are device, inode, size and modification time in nanoseconds of each file when
    its header was read (T-21).
    """

    model_id: ModelId
    reference: str
    names: tuple[str, ...]
    path: str
    facts: ModelFacts
    status: str = "ok"
    added_at: float = 0.0
    companions: tuple[tuple[str, str], ...] = ()
    stamps: tuple[tuple[str, int, int, int, int], ...] = ()
