"""The adapter of llama.cpp: one frozen object that answers the contract from the modules beside it (E-1 to E-6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.domain.context import EngineWishes, LaunchPlan
from stoker.domain.footprint import MemoryProfile
from stoker.domain.hardware import Hardware
from stoker.domain.models import LOADABLE, ModelFacts
from stoker.engines.llama_cpp import abilities, build, exits, launch, metrics, startup, wire
from stoker.engines.llama_cpp.facts import DESCRIPTOR, ID, OPTIONS, TITLE, TOKEN_VARIABLE
from stoker.engines.llama_cpp.settings import LlamaCppSettings, wishes_of
from stoker.errors import ErrorCode
from stoker.ids import EngineId
from stoker.ports.engines import (
    CONTRACT,
    Accepted,
    Build,
    BuildRefused,
    Capabilities,
    Captured,
    ExitSeen,
    InstallationSite,
    Launch,
    ProbeCommand,
    ReadySeen,
    Reason,
    Sample,
    Search,
    Seen,
    Site,
    Startup,
    Traits,
    Verdict,
)

GIB = 1 << 30
_MEMORY = DESCRIPTOR["memory"]
# settings field -> the feature it needs, when it is not at its default (E-13)
_NEEDS = {
    "cpu_moe_layers": "n-cpu-moe",
    "cache_reuse_tokens": "cache-reuse",
    "checkpoints": "checkpoints",
    "numa": "numa",
    "prompt_cache_bytes": "cache-ram",
    "reasoning_budget_tokens": "reasoning-budget",
    "reasoning_format": "reasoning-format",
    "slot_similarity": "slot-similarity",
    "swa_full": "swa-full",
    "warmup": "warmup",
}
_CHOSEN = ("cache_type_k", "cache_type_v", "pooling", "split_mode")
TRAITS = Traits(
    formats=frozenset(DESCRIPTOR["formats"]),
    tasks=frozenset(DESCRIPTOR["tasks"]),
    unit_kinds=frozenset({"process"}),
    endpoints=frozenset({"unix", "tcp"}),
    token=f"env:{TOKEN_VARIABLE}",
    stop_grace_s=DESCRIPTOR["stop_grace_s"],
    arguments=OPTIONS,
)


@dataclass(frozen=True, slots=True)
class LlamaCppAdapter:
    """llama.cpp, as the wheel's server or as ``llama-server``."""

    id: EngineId = ID
    contract: int = CONTRACT
    title: str = TITLE
    traits: Traits = TRAITS
    settings: type[LlamaCppSettings] = LlamaCppSettings
    searches: tuple[Search, ...] = (
        Search("embedded", DESCRIPTOR["module"]),
        Search("binary", DESCRIPTOR["program"]),
    )

    def probe_commands(self, at: InstallationSite) -> tuple[ProbeCommand, ...]:
        return build.probe_commands(at)

    def read_build(self, at: InstallationSite, outputs: Mapping[str, Captured]) -> Build | BuildRefused:
        return build.read_build(at, outputs)

    def refuse_model(self, facts: ModelFacts, settings: LlamaCppSettings, build: Build | None) -> tuple[Reason, ...]:
        return (*_refuse_facts(facts, settings), *(_refuse_settings(settings, build) if build is not None else ()))

    def wishes(self, settings: LlamaCppSettings) -> EngineWishes:
        return wishes_of(settings)

    def profile(self, build: Build | None, hardware: Hardware) -> MemoryProfile:
        backend = _backend(build, hardware)
        row = _MEMORY["backends"][backend]
        repacks = build is None or "repack" in build.features
        return MemoryProfile(
            engine=ID,
            backend=backend,
            cell_step=_MEMORY["cell_step"],
            host_fixed_bytes=row["host_fixed_mib"] << 20,
            fixed_bytes=row["fixed_mib"] << 20,
            compute_factor=row["compute_factor"],
            repack_types=frozenset(_MEMORY["repack_types"]) if repacks else frozenset(),
            window_margin=True,
            kv_quant_sensitive=frozenset(_MEMORY["kv_quant_sensitive"]),
        )

    def capabilities(self, facts: ModelFacts, settings: LlamaCppSettings, build: Build | None) -> Capabilities:
        del build
        return abilities.expected(facts, settings)

    def load_allowance_s(self, weight_bytes: int, settings: LlamaCppSettings) -> float:
        del settings
        return float(DESCRIPTOR["allowance"]["base_s"] + DESCRIPTOR["allowance"]["per_gib_s"] * weight_bytes / GIB)

    def launch(self, plan: LaunchPlan, site: Site) -> Launch:
        return launch.launch(plan, site, self.traits.stop_grace_s)

    def startup(self, plan: LaunchPlan, build: Build | None) -> Startup:
        del plan, build
        return startup.STARTUP

    def read_line(self, text: str, seen: Seen) -> Seen:
        return startup.read_line(text, seen)

    def judge_ready(self, seen: ReadySeen) -> Accepted | Verdict:
        return startup.judge_ready(seen)

    def explain(self, seen: ExitSeen) -> Verdict:
        return exits.explain(seen)

    def wire(self, plan: LaunchPlan, accepted: Accepted) -> wire.LlamaCppWire:
        return wire.wire(plan, accepted)

    def read_metrics(self, text: str) -> Sample:
        return metrics.read_metrics(text)


ADAPTER = LlamaCppAdapter()


def _refuse_facts(facts: ModelFacts, settings: LlamaCppSettings) -> tuple[Reason, ...]:
    if facts.format != "gguf":
        return (
            Reason(
                ErrorCode.MODEL_UNSUPPORTED,
                f"llama.cpp reads GGUF files, and {facts.name!r} is {facts.format}.",
                remedy="Use a GGUF of this model, or another engine.",
            ),
        )
    if facts.kind not in LOADABLE:
        return (Reason(ErrorCode.WRONG_KIND, f"{facts.name!r} is a {facts.kind} file and cannot be served alone."),)
    task = abilities.task_of(facts, settings)
    if settings.max_output_tokens and task != "generate":
        return (
            Reason(
                ErrorCode.BAD_SETTING,
                f"max_output_tokens = {settings.max_output_tokens} means nothing for task {task}.",
                param="settings.max_output_tokens",
                remedy="Remove it.",
            ),
        )
    return ()


def _refuse_settings(settings: LlamaCppSettings, build: Build) -> tuple[Reason, ...]:
    """Settings whose flag or value this build does not have, and layers for cards it does not see (E-13, E-26)."""
    fields = type(settings).model_fields
    found = [
        _lacking(name, build, f"has no {feature}")
        for name, feature in _NEEDS.items()
        if getattr(settings, name) != fields[name].default and feature not in build.features
    ]
    if settings.speculation != "off" and "spec-type" not in build.features:
        found.append(_lacking("speculation", build, "cannot speculate"))
    for name in _CHOSEN:
        value = getattr(settings, name)
        if value is not None and name in build.values and value not in build.values[name]:
            found.append(_lacking(name, build, f"does not know {value}"))
    if settings.gpu_layers and not build.devices:
        found.append(_lacking("gpu_layers", build, "sees no card"))
    return tuple(found)


def _lacking(name: str, build: Build, why: str) -> Reason:
    return Reason(
        ErrorCode.BAD_SETTING,
        f"The setting {name} cannot be used: llama.cpp {build.release} {why}.",
        param=f"settings.{name}",
        remedy=f"Remove {name}, or name another installation.",
    )


def _backend(build: Build | None, hardware: Hardware) -> str:
    if build is None or hardware.shape == "cpu":
        return "cpu"
    for device in build.devices:
        for start, backend in _MEMORY["device_names"].items():
            if device.name.startswith(start):
                return str(backend)
    return "cpu"
