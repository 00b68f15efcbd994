"""Models of known sizes, as facts and plan requests, for tests that price, plan and admit."""

from __future__ import annotations

from stoker.domain.context import EngineWishes, PlanRequest
from stoker.domain.footprint import MemoryProfile
from stoker.domain.models import BlockWeights, LayerGroup, LayerKind, ModelFacts, ModelFile, ModelKind, Weights
from stoker.ids import EngineId

GIB, MIB = 1 << 30, 1 << 20
NO_WEIGHTS = Weights()
LLAMA_CPU = MemoryProfile(
    engine="llama.cpp",
    backend="cpu",
    cell_step=256,
    host_fixed_bytes=30 * MIB,
    compute_factor=1.0,
    repack_types=frozenset({"q4_0", "q4_K"}),
)


def facts(*groups: LayerGroup, weights: Weights = NO_WEIGHTS, **members: object) -> ModelFacts:
    """Facts of a text model with these layers; ``members`` replace any field."""
    values: dict[str, object] = {
        "kind": ModelKind.TEXT,
        "format": "gguf",
        "architecture": "llama",
        "name": "m",
        "quant_label": "",
        "content_id": "",
        "files": (ModelFile("m.gguf", weights.total),),
        "context_native": 131_072,
        "vocab_size": 0,
        "merges_count": 0,
        "embed_dim": 0,
        "heads": 0,
        "ff_dim": 0,
        "layer_groups": groups,
        "weights": weights,
    }
    return ModelFacts(**{**values, **members})  # type: ignore[arg-type]


def smollm2(**members: object) -> ModelFacts:
    """SmolLM2 135M, Q4_1."""
    blocks = tuple(BlockWeights(attention_and_rest=2_216_448) for _ in range(30))
    weights = Weights(input_embedding=30_081_024, blocks=blocks, other=2_304, by_type=(("q4_1", 66_355_200),))
    values: dict[str, object] = {
        "context_native": 8_192, "vocab_size": 49_152, "merges_count": 48_900, "embed_dim": 576, "heads": 9,
        "ff_dim": 1_536,
    }  # fmt: skip
    return facts(LayerGroup(30, LayerKind.FULL, 3, 64, 64), weights=weights, **{**values, **members})


def gemma3_270m() -> ModelFacts:
    """Gemma 3 270M, Q4_K_M."""
    return facts(
        LayerGroup(15, LayerKind.SLIDING, 1, 256, 256, 512),
        LayerGroup(3, LayerKind.FULL, 1, 256, 256),
        weights=Weights(input_embedding=246_587_904 - 13_271_040, other=13_271_040, by_type=(("q4_K", 13_271_040),)),
        architecture="gemma3",
        context_native=32_768,
        vocab_size=262_144,
        embed_dim=640,
        heads=4,
        ff_dim=2_048,
    )


def request(model: ModelFacts | None = None, **members: object) -> PlanRequest:
    """A request for the planner with llama.cpp's CPU profile and no host caches; ``members`` replace any field."""
    values: dict[str, object] = {
        "deployment": "m",
        "engine": EngineId("llama.cpp"),
        "model_path": "/m.gguf",
        "facts": model or smollm2(),
        "settings": {},
        "wishes": EngineWishes(cache_ram_bytes=0),
        "profile": LLAMA_CPU,
    }
    return PlanRequest(**{**values, **members})  # type: ignore[arg-type]


def declared(name: str, amount: int) -> PlanRequest:
    """A model whose operator says what it takes."""
    return request(deployment=name, declared_bytes=amount)
