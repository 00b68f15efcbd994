"""Settings of llama.cpp (E-71). Names are ours; the engine's own words are accepted beside them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from stoker.domain.context import EngineWishes
from stoker.engines.settings import Also, EngineSettings, Restart

MIB = 1 << 20
KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
QUANTISED = frozenset({"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"})


class LlamaCppSettings(EngineSettings):
    """What an operator may fix of a llama.cpp session. Everything not given is the planner's."""

    gpu_layers: Annotated[int | None, Restart, Also(("n_gpu_layers", "ngl"))] = Field(
        default=None, ge=0, le=1000, description="Layers on the cards."
    )
    cpu_moe_layers: Annotated[int | None, Restart, Also(("n_cpu_moe",))] = Field(
        default=None, ge=0, le=1000, description="Layers whose experts stay in RAM."
    )
    split_mode: Annotated[Literal["none", "layer", "row"] | None, Restart] = Field(
        default=None, description="How a model is divided among cards."
    )
    tensor_split: Annotated[tuple[float, ...] | None, Strict(strict=False), Restart] = Field(
        default=None, min_length=1, max_length=16, description="Share of each card, in plan order."
    )
    cache_type_k: Annotated[KvType | None, Restart] = Field(default=None, description="Element type of cached keys.")
    cache_type_v: Annotated[KvType | None, Restart] = Field(default=None, description="Element type of cached values.")
    flash_attention: Annotated[Literal["on", "off"] | None, Restart, Also(("flash_attn",))] = Field(
        default=None, description="Attention without the full score matrix."
    )
    batch_tokens: Annotated[int | None, Restart, Also(("batch_size", "n_batch"))] = Field(
        default=None, ge=32, le=16_384, description="Tokens handed to the engine at once."
    )
    micro_batch_tokens: Annotated[int | None, Restart, Also(("ubatch_size", "n_ubatch"))] = Field(
        default=None, ge=32, le=16_384, description="Tokens computed at once; sizes the scratch memory."
    )
    threads: Annotated[int | None, Restart, Also(("n_threads",))] = Field(
        default=None, ge=1, le=1024, description="Compute threads."
    )
    load_mode: Annotated[Literal["mmap", "none"] | None, Restart] = Field(
        default=None, description="mmap: weights stay in the file cache; none: they are read into memory."
    )
    prompt_cache_bytes: Annotated[int | None, Restart] = Field(
        default=None, ge=0, le=1 << 40, description="RAM for the states of earlier prompts, in whole MiB."
    )
    cache_reuse_tokens: Annotated[int, Restart, Also(("cache_reuse",))] = Field(
        default=0, ge=0, le=65_536, description="Shortest piece of a cached prompt that is moved instead of computed."
    )
    checkpoints: Annotated[int | None, Restart, Also(("ctx_checkpoints",))] = Field(
        default=None, ge=0, le=64, description="Saved states a slot of models with sliding windows or recurrent layers."
    )
    swa_full: Annotated[bool, Restart] = Field(default=False, description="Full-size cache for sliding-window layers.")
    warmup: Annotated[bool, Restart] = Field(default=True, description="Run the model once, empty, before ready.")
    pooling: Annotated[Literal["none", "mean", "cls", "last", "rank"] | None, Restart] = Field(
        default=None, description="How token vectors become one; auto: what the model says."
    )
    reasoning_format: Annotated[Literal["none", "deepseek", "deepseek-legacy"] | None, Restart] = Field(
        default=None, description="Where thinking stands in an answer."
    )
    reasoning_budget_tokens: Annotated[int | None, Restart, Also(("reasoning_budget",))] = Field(
        default=None, ge=-1, le=1_000_000, description="Longest thinking; -1: no limit."
    )
    speculation: Annotated[Literal["off", "ngram"], Restart] = Field(
        default="off", description="Guess further tokens from what the text repeats."
    )
    slot_similarity: Annotated[float, Restart] = Field(
        default=0.1, ge=0, le=1, description="How alike a prompt must be to what a slot holds to be put there."
    )
    numa: Annotated[Literal["distribute", "isolate", "numactl"] | None, Restart] = Field(
        default=None, description="Placement on machines with several memory nodes."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """E-26, E-70: what the engine would refuse only at its start."""
        if self.flash_attention == "off" and self.cache_type_v in QUANTISED:
            raise ValueError(f"cache_type_v = {self.cache_type_v} needs flash_attention; set it on, or use f16")
        if self.batch_tokens and self.micro_batch_tokens and self.micro_batch_tokens > self.batch_tokens:
            raise ValueError(
                f"micro_batch_tokens = {self.micro_batch_tokens} is more than batch_tokens = {self.batch_tokens}"
            )
        if self.prompt_cache_bytes is not None and self.prompt_cache_bytes % MIB:
            raise ValueError(f"prompt_cache_bytes = {self.prompt_cache_bytes} is not a whole number of MiB")
        return self


def wishes_of(settings: LlamaCppSettings) -> EngineWishes:
    """The settings in the planner's words."""
    return EngineWishes(
        kv_type_k=settings.cache_type_k,
        kv_type_v=settings.cache_type_v,
        flash_attention={"on": True, "off": False, None: None}[settings.flash_attention],
        batch_tokens=settings.batch_tokens,
        micro_batch_tokens=settings.micro_batch_tokens,
        gpu_layers=settings.gpu_layers,
        threads=settings.threads,
        use_mmap=settings.load_mode != "none",
        checkpoints=settings.checkpoints,
        cache_ram_bytes=settings.prompt_cache_bytes,
    )
