"""What the keys of a GGUF file mean: `ModelFacts` (M-1, M-2, M-6, M-13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.domain.models import BlockWeights, Experts, ModelFacts, ModelFile, ModelKind, Rope, Weights
from stoker.store.byte_source import ByteSource
from stoker.store.gguf import ArrayOf, Header, TensorSums, Text, read_header
from stoker.store.gguf_layers import ArchKeys, Layers, read_layers
from stoker.store.gguf_types import FILE_TYPES, POOLING

# general.type of files that are no model by themselves (M-2).
_KINDS = {
    "adapter": ModelKind.ADAPTER,
    "mmproj": ModelKind.PROJECTOR,
    "projector": ModelKind.PROJECTOR,
    "vocab": ModelKind.VOCAB_ONLY,
    "imatrix": ModelKind.OTHER,
}
_ENCODERS = frozenset(
    {"bert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert",
     "nomic-bert-moe", "t5encoder"}
)  # fmt: skip


def read_facts(source: ByteSource, *, content_id: str = "") -> ModelFacts:
    """Facts of a model in one file."""
    header = read_header(source)
    return facts_of(header, header.tensors, (ModelFile(source.name, source.size),), content_id)


def facts_of(header: Header, tensors: TensorSums, files: tuple[ModelFile, ...], content_id: str) -> ModelFacts:
    """Facts from the keys of ``header`` (part 1 of a set) and the tensors of all parts."""
    keys = header.keys
    architecture = _text(keys, "general.architecture")
    arch = ArchKeys(architecture, keys, header.name)
    layers = read_layers(arch)
    vocab = _length(keys, "tokenizer.ggml.tokens") or arch.number("vocab_size")
    template = keys.get("tokenizer.chat_template")
    uncertain = [*layers.uncertain, *sorted(tensors.uncertain)]
    if not layers.groups:
        uncertain.append("no-geometry")
    return ModelFacts(
        kind=kind_of(arch, layers, tensors),
        format="gguf",
        architecture=architecture,
        name=_text(keys, "general.name"),
        quant_label=FILE_TYPES.get(_integer(keys, "general.file_type", -1), ""),
        content_id=content_id,
        files=files,
        context_native=_native(arch),
        vocab_size=vocab,
        merges_count=_length(keys, "tokenizer.ggml.merges"),
        embed_dim=arch.number("embedding_length"),
        heads=layers.heads,
        ff_dim=layers.ff_dim,
        layer_groups=layers.groups,
        weights=_weights(tensors),
        rope=_rope(arch),
        experts=_experts(arch),
        draft_layers=layers.draft_layers,
        tied_embedding=bool(tensors.input_embedding) and not tensors.has_output,
        pooling=POOLING.get(arch.number("pooling_type")),
        has_chat_template=isinstance(template, Text) and template.bytes > 0,
        template_digest=template.digest if isinstance(template, Text) and template.bytes else None,
        uncertain=tuple(uncertain),
    )


def kind_of(arch: ArchKeys, layers: Layers, tensors: TensorSums) -> ModelKind:
    """M-2. The first rule that says something decides."""
    declared = _text(arch.keys, "general.type")
    if arch.architecture == "clip":
        return ModelKind.PROJECTOR
    if declared in _KINDS:
        return _KINDS[declared]
    if not arch.architecture:
        return ModelKind.OTHER
    if tensors.count == 0:
        return ModelKind.VOCAB_ONLY
    if layers.draft_layers and not layers.groups:
        return ModelKind.DRAFT_ONLY
    if not layers.groups:
        return ModelKind.OTHER
    pooling = arch.number("pooling_type")
    if pooling == 4:
        return ModelKind.RERANK
    has_head = tensors.has_output and arch.raw("attention.causal") is not False
    if arch.architecture in _ENCODERS or (pooling and not has_head):
        return ModelKind.EMBEDDING
    return ModelKind.TEXT


def _native(arch: ArchKeys) -> int:
    """Native window; rope scaling is in it already unless the file says what it was before (M-57)."""
    native, rope = arch.number("context_length"), _rope(arch)
    if rope.original_context and rope.factor > 1 and rope.type in {"linear", "yarn", "longrope"}:
        return max(native, int(rope.original_context * rope.factor))
    return native


def _rope(arch: ArchKeys) -> Rope:
    factor = arch.raw("rope.scaling.factor")
    return Rope(
        type=_text(arch.keys, f"{arch.architecture}.rope.scaling.type") or "none",
        factor=float(factor) if isinstance(factor, float) and 0 < factor < 1e6 else 1.0,
        original_context=arch.number("rope.scaling.original_context_length"),
    )


def _experts(arch: ArchKeys) -> Experts:
    count = arch.number("expert_count")
    if not count:
        return Experts()
    return Experts(
        count=count,
        used=arch.number("expert_used_count"),
        ff=arch.number("expert_feed_forward_length") or arch.number("feed_forward_length"),
        shared_ff=arch.number("expert_shared_feed_forward_length"),
    )


def _weights(tensors: TensorSums) -> Weights:
    blocks = max(tensors.blocks, default=-1) + 1
    return Weights(
        input_embedding=tensors.input_embedding,
        output=tensors.output,
        blocks=tuple(BlockWeights(*tensors.blocks.get(i, (0, 0, 0))) for i in range(blocks)),
        other=tensors.other,
        by_type=tuple(sorted(tensors.by_type.items())),
    )


def _text(keys: Mapping[str, Any], name: str) -> str:
    value = keys.get(name)
    return value if isinstance(value, str) else ""


def _integer(keys: Mapping[str, Any], name: str, default: int) -> int:
    value = keys.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _length(keys: Mapping[str, Any], name: str) -> int:
    value = keys.get(name)
    return value.count if isinstance(value, ArrayOf) else 0
