"""From a plan to a command: one list of values, rendered as flags or as parameters (E-31 to E-37, E-66, E-69).

It derives nothing: every figure is the plan's (E-4). Whatever costs memory or changes answers is written out, so no
default of the engine is ever in force (E-32). A value whose flag the build lacks is left out here only where the build
also lacks the thing itself; settings of the user were refused before (E-13).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stoker.domain.context import LaunchPlan
from stoker.engines.llama_cpp.facts import ASSUMED, BINARY, TOKEN_VARIABLE
from stoker.engines.llama_cpp.settings import MIB, LlamaCppSettings
from stoker.errors import ErrorCode, InternalError
from stoker.ports.engines import Launch, Site
from stoker.ports.units import Endpoint

LAUNCHER = "stoker.engines.llama_cpp.launcher"
SOCKET_PATH_BYTES = 100
PING_S = 2  # a stream notices a stop only at its next ping
LOG_LEVEL = 4  # the memory lines stand here; request text only above it


@dataclass(frozen=True, slots=True)
class Value:
    """One decision: ``flags`` for the executable, ``parameters`` for the wheel, both only if the build has ``need``."""

    flags: tuple[str, ...] = ()
    parameters: tuple[tuple[str, Any], ...] = ()
    need: str = ""


def launch(plan: LaunchPlan, site: Site, stop_grace_s: float) -> Launch:
    """The complete instruction for one life; equal plans and sites give equal bytes."""
    features = site.build.features if site.build is not None else ASSUMED
    endpoint = choose_endpoint(site, has_sockets="unix-socket" in features)
    values = [value for value in _values(plan, site, endpoint) if not value.need or value.need in features]
    files: dict[str, tuple[str, bool]] = {}
    if site.site_kind == BINARY:
        flags = tuple(flag for value in values for flag in value.flags)
        argv = (site.executable, *flags, *site.extra_args)
    else:
        if site.extra_args:
            raise InternalError(
                ErrorCode.LAUNCH_INVALID,
                f"The embedded build of llama.cpp takes no engine arguments, and {len(site.extra_args)} are given.",
                remedy="Remove engine_args, or install llama-server and name it.",
            )
        parameters = {name: item for value in values for name, item in value.parameters}
        files["launch.json"] = (json.dumps({"parameters": parameters}, indent=1, ensure_ascii=False) + "\n", False)
        argv = (site.executable, "-I", "-m", LAUNCHER, f"{site.life_dir}/launch.json")
        argv += () if endpoint.socket else ("{port}",)
    return Launch(
        argv=argv,
        env=_environment(plan, site),
        files=files,
        endpoint=endpoint,
        stop_grace_s=stop_grace_s,
        shown=argv,
    )


def choose_endpoint(site: Site, *, has_sockets: bool) -> Endpoint:
    """A socket in the life's own folder where its path fits, else a loopback port (E-33)."""
    path = f"{site.life_dir}/e.sock"
    fits = len(path.encode()) <= SOCKET_PATH_BYTES
    if fits and has_sockets and site.unit_kind == "process" and not site.endpoint.port:
        return Endpoint(socket=path)
    return Endpoint(host="127.0.0.1", port=site.endpoint.port)


def engine_name(site: Site) -> str:
    """The name answers carry. The engine's parser splits at commas (E-56)."""
    return f"m-{site.generation}" if "," in site.served_name else site.served_name


def _values(plan: LaunchPlan, site: Site, endpoint: Endpoint) -> Iterator[Value]:
    """In the order of E-31: model, name, endpoint, plan, place, task, features."""
    settings: LlamaCppSettings = plan.settings
    yield Value(("--model", site.model_path), (("model.path", site.model_path),))
    yield Value(("--alias", engine_name(site)), (("model_alias", [engine_name(site)]),))
    yield from _endpoint(endpoint)
    yield from _plan(plan)
    yield from _place(plan, site, settings)
    yield from _task(plan, settings)
    yield from _features(plan, site, settings)


def _endpoint(endpoint: Endpoint) -> Iterator[Value]:
    host = endpoint.socket or endpoint.host
    yield Value(("--host", host), (("hostnames", [host]),))
    if not endpoint.socket:
        yield Value(("--port", "{port}"))
    yield Value(("--no-ui",), (("ui", False),), "no-ui")
    yield Value(("--no-webui",), (), "no-webui")
    yield Value(("--offline",), (("offline", True),), "offline")
    yield Value(
        ("--cors-origins", "localhost"),
        (("cors_origins", "localhost"), ("cors_origins_explicit", True)),
        "cors-origins",
    )
    yield Value(("--log-verbosity", str(LOG_LEVEL)), (("verbosity", LOG_LEVEL),))


def _plan(plan: LaunchPlan) -> Iterator[Value]:
    total = plan.slots * plan.context_tokens  # the engine divides it by the slots again
    flash = "on" if plan.flash_attention else "off"
    cache_mib = plan.cache_ram_bytes // MIB
    yield Value(("--ctx-size", str(total)), (("n_ctx", total),))
    yield Value(("--parallel", str(plan.slots)), (("n_parallel", plan.slots),))
    yield Value(("--no-kv-unified",), (("kv_unified", False),), "kv-unified")
    yield Value(("--fit", "off"), (("fit_params", False),), "fit")
    yield Value(("--batch-size", str(plan.batch_tokens)), (("n_batch", plan.batch_tokens),))
    yield Value(("--ubatch-size", str(plan.micro_batch_tokens)), (("n_ubatch", plan.micro_batch_tokens),))
    yield Value(("--cache-type-k", plan.kv_type_k), (("cache_type_k", f"GGML_TYPE_{plan.kv_type_k.upper()}"),))
    yield Value(("--cache-type-v", plan.kv_type_v), (("cache_type_v", f"GGML_TYPE_{plan.kv_type_v.upper()}"),))
    yield Value(
        ("--flash-attn", flash),
        (("flash_attn_type", "ENABLED" if plan.flash_attention else "DISABLED"),),
        "flash-attn-value",
    )
    if plan.flash_attention:
        yield Value(("--flash-attn",), (), "flash-attn-bare")
    yield Value(("--cache-ram", str(cache_mib)), (("cache_ram_mib", cache_mib),), "cache-ram")
    yield Value(("--ctx-checkpoints", str(plan.checkpoints)), (("n_ctx_checkpoints", plan.checkpoints),), "checkpoints")
    yield Value(("--no-context-shift",), (("ctx_shift", False),), "context-shift")
    yield Value(("--sse-ping-interval", str(PING_S)), (("sse_ping_interval", PING_S),), "sse-ping")


def _place(plan: LaunchPlan, site: Site, settings: LlamaCppSettings) -> Iterator[Value]:
    names = _devices(plan, site)
    yield Value(("--device", ",".join(names) or "none"), (), "device-list")
    yield Value(("--gpu-layers", str(plan.gpu_layers)), (("n_gpu_layers", plan.gpu_layers),))
    if names:
        split = settings.split_mode or ("none" if len(names) == 1 else "layer")
        yield Value(("--split-mode", split), (("split_mode", f"LLAMA_SPLIT_MODE_{split.upper()}"),))
        yield Value(("--main-gpu", "0"), (("main_gpu", 0),))
        if settings.tensor_split is not None:
            shares = list(settings.tensor_split)
            yield Value(("--tensor-split", ",".join(f"{share:g}" for share in shares)), (("tensor_split", shares),))
    if settings.cpu_moe_layers:
        yield Value(("--n-cpu-moe", str(settings.cpu_moe_layers)), (), "n-cpu-moe")
    mode = "mmap" if plan.use_mmap else "none"
    yield Value(("--load-mode", mode), (("load_mode", f"LLAMA_LOAD_MODE_{mode.upper()}"),), "load-mode")
    if not plan.use_mmap:
        yield Value(("--no-mmap",), (), "mmap-flags")
    yield Value(
        ("--threads", str(plan.threads), "--threads-batch", str(plan.threads)),
        (("cpuparams.n_threads", plan.threads), ("cpuparams_batch.n_threads", plan.threads)),
    )
    if settings.numa is not None:
        yield Value(("--numa", settings.numa), (("numa", f"GGML_NUMA_STRATEGY_{settings.numa.upper()}"),), "numa")
    yield Value(("--no-mmproj",), (("no_mmproj", True),), "no-mmproj")


def _task(plan: LaunchPlan, settings: LlamaCppSettings) -> Iterator[Value]:
    """E-21: a session is launched for one task."""
    if plan.task in {"embed", "rerank"}:
        yield Value(("--embeddings",), (("embedding", True),))
    if plan.task == "rerank":
        yield Value(("--rerank",), (("pooling_type", "LLAMA_POOLING_TYPE_RANK"),), "rerank")
    pooling = settings.pooling or plan.facts.pooling
    if plan.task == "embed" and pooling:
        yield Value(("--pooling", pooling), (("pooling_type", f"LLAMA_POOLING_TYPE_{pooling.upper()}"),))
    if plan.task == "generate" and settings.speculation == "ngram":
        yield Value(("--spec-type", "ngram-simple"), (("speculative.types", ["NGRAM_SIMPLE"]),), "spec-type")


def _features(plan: LaunchPlan, site: Site, settings: LlamaCppSettings) -> Iterator[Value]:
    yield Value(("--metrics",), (("endpoint_metrics", True),), "metrics")
    yield Value(("--slots",), (("endpoint_slots", True),), "slots")
    if site.slots_dir and plan.task == "generate":
        folder = site.slots_dir.rstrip("/") + "/"  # the engine joins names to it without a slash of its own
        yield Value(("--slot-save-path", folder), (("slot_save_path", folder),), "slot-save")
    similarity = settings.slot_similarity
    yield Value(
        ("--slot-prompt-similarity", f"{similarity:g}"), (("slot_prompt_similarity", similarity),), "slot-similarity"
    )
    reuse = settings.cache_reuse_tokens
    yield Value(("--cache-reuse", str(reuse)), (("n_cache_reuse", reuse),), "cache-reuse")
    yield Value(("--jinja",), (("use_jinja", True),))
    if settings.reasoning_format is not None:
        name = settings.reasoning_format.upper().replace("-", "_")
        yield Value(
            ("--reasoning-format", settings.reasoning_format),
            (("reasoning_format", f"COMMON_REASONING_FORMAT_{name}"),),
            "reasoning-format",
        )
    if settings.reasoning_budget_tokens is not None:
        budget = settings.reasoning_budget_tokens
        yield Value(
            ("--reasoning-budget", str(budget)), (("sampling.reasoning_budget_tokens", budget),), "reasoning-budget"
        )
    if settings.swa_full:
        yield Value(("--swa-full",), (("swa_full", True),), "swa-full")
    yield Value(
        () if settings.warmup else ("--no-warmup",),
        (("warmup", settings.warmup),),
        "warmup",
    )


def _devices(plan: LaunchPlan, site: Site) -> tuple[str, ...]:
    """Names of the plan's cards as the build lists them, by ordinal (E-72); none for a plan without layers there."""
    if not plan.gpu_layers or site.build is None:
        return ()
    listed = [device.name for device in site.build.devices]
    if not site.cards:
        return tuple(listed)
    return tuple(listed[ordinal] for _, ordinal in site.cards if ordinal < len(listed))


def _environment(plan: LaunchPlan, site: Site) -> dict[str, str]:
    """E-34 to E-36: what the engine itself reads. The unit's own variables are the shell's (S-46)."""
    cards = ",".join(uuid for uuid, _ in site.cards) if plan.gpu_layers else ""
    environment = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(plan.threads),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if cards or not plan.gpu_layers:
        environment["CUDA_VISIBLE_DEVICES"] = cards
    environment.update(site.extra_env)
    if site.token is not None:
        environment[TOKEN_VARIABLE] = site.token
    return environment
