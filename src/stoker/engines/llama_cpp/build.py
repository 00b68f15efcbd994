"""What an installed llama.cpp can do, read from itself (E-12, E-13, E-68).

The executable tells by its help text, the wheel by the names of its parameters. Version strings are shown and never
compared. The wheel is looked at in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.engines.arguments import TAKES_ARGUMENTS
from stoker.engines.llama_cpp.facts import BINARY, ID
from stoker.engines.llama_cpp.launch import LAUNCHER
from stoker.ports.engines import Build, BuildDevice, BuildRefused, Captured, InstallationSite, ProbeCommand

# feature -> (an option of the executable, a parameter of the wheel); empty: that build cannot have it
FEATURES: dict[str, tuple[str, str]] = {
    "cache-ram": ("--cache-ram", "cache_ram_mib"),
    "cache-reuse": ("--cache-reuse", "n_cache_reuse"),
    "checkpoints": ("--ctx-checkpoints", "n_ctx_checkpoints"),
    "context-shift": ("--no-context-shift", "ctx_shift"),
    "cors-origins": ("--cors-origins", "cors_origins"),
    "device-list": ("--device", ""),
    "fit": ("--fit", "fit_params"),
    "jsonl": ("--log-json", "log_json"),
    "kv-unified": ("--no-kv-unified", "kv_unified"),
    "load-mode": ("--load-mode", "load_mode"),
    "metrics": ("--metrics", "endpoint_metrics"),
    "n-cpu-moe": ("--n-cpu-moe", ""),
    "no-mmproj": ("--no-mmproj", "no_mmproj"),
    "no-ui": ("--no-ui", "ui"),
    "numa": ("--numa", "numa"),
    "offline": ("--offline", "offline"),
    "reasoning-budget": ("--reasoning-budget", "sampling.reasoning_budget_tokens"),
    "reasoning-format": ("--reasoning-format", "reasoning_format"),
    "rerank": ("--rerank", "pooling_type"),
    "slot-save": ("--slot-save-path", "slot_save_path"),
    "slot-similarity": ("--slot-prompt-similarity", "slot_prompt_similarity"),
    "slots": ("--slots", "endpoint_slots"),
    "spec-draft": ("--spec-draft-model", "speculative.draft"),
    "spec-type": ("--spec-type", "speculative.types"),
    "sse-ping": ("--sse-ping-interval", "sse_ping_interval"),
    "swa-full": ("--swa-full", "swa_full"),
    "unix-socket": ("", "hostnames"),
    "warmup": ("--no-warmup", "warmup"),
}
_HEAD = re.compile(r"^(-\S.*?)(?:\s{2,}(?=[^-\s])|$)", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")
_BRACES = {
    "cache_type_k": re.compile(r"--cache-type-k TYPE.*?allowed values: ([\w, ]+)", re.DOTALL),
    "cache_type_v": re.compile(r"--cache-type-v TYPE.*?allowed values: ([\w, ]+)", re.DOTALL),
    "pooling": re.compile(r"--pooling \{([\w,]+)\}"),
    "split_mode": re.compile(r"--split-mode \{([\w,]+)\}"),
}
_RELEASE = re.compile(
    r"version:\s*(?P<release>[^\s(]+)(?:\s*\((?:build (?P<build>\d+), )?(?:commit )?(?P<commit>\w+)\))?"
)
_DEVICE = re.compile(r"^\s+(?P<name>[A-Z]\w*\d*): (?P<what>.*?) \((?P<mib>\d+) MiB", re.MULTILINE)
_KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


def probe_commands(at: InstallationSite) -> tuple[ProbeCommand, ...]:
    if at.kind == BINARY:
        return (
            ProbeCommand("version", (at.executable, "--version")),
            ProbeCommand("help", (at.executable, "--help")),
            ProbeCommand("devices", (at.executable, "--list-devices"), timeout_s=20.0),
        )
    return (ProbeCommand("module", (at.executable, "-I", "-m", LAUNCHER, "--probe"), timeout_s=120.0),)


def read_build(at: InstallationSite, outputs: Mapping[str, Captured]) -> Build | BuildRefused:
    for name, captured in outputs.items():
        if captured.ended != "exit":
            cause = {"missing": "is not there", "timeout": f"did not answer in {captured.took_ms / 1000:.0f} s"}
            return BuildRefused(captured.ended, f"{at.executable} {cause.get(captured.ended, 'cannot be run')}.")
        if captured.status != 0 and name in {"version", "help", "module"}:
            return _refused(at, captured)
    digest = _digest(outputs.values())
    return _read_program(at, outputs, digest) if at.kind == BINARY else _read_module(at, outputs, digest)


def _refused(at: InstallationSite, captured: Captured) -> BuildRefused:
    """It ran and failed: by a signal, or with words of its own (E-15)."""
    if captured.status == -4:
        return BuildRefused(
            "illegal-instruction", f"{at.executable} uses instructions that this processor does not have."
        )
    lines = captured.stderr.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1][:200] if lines else "it printed nothing"
    return BuildRefused("failed", f"{at.executable} ended with status {captured.status}: {last}")


def options_of(help_text: str) -> frozenset[str]:
    """Every option a help text describes, short ones and aliases too."""
    heads = (match.group(1) for match in _HEAD.finditer(help_text))
    return frozenset(option for head in heads for option in _OPTION.findall(head))


def _read_program(at: InstallationSite, outputs: Mapping[str, Captured], digest: str) -> Build | BuildRefused:
    text = _text(outputs, "help")
    options = options_of(text)
    if not {"--model", "--ctx-size", "--parallel"} <= options:
        return BuildRefused("not-llama-server", f"{at.executable} does not describe itself as llama.cpp's server.")
    features = {name for name, (option, _) in FEATURES.items() if option in options} | {TAKES_ARGUMENTS}
    features |= {"unix-socket"} if re.search(r"unix\s+socket", text, re.IGNORECASE) else set()
    features |= {"flash-attn-value"} if re.search(r"--flash-attn \[?[{(]?on", text) else {"flash-attn-bare"}
    features |= {"mmap-flags"} if "load-mode" not in features else set()
    features |= {"no-webui"} if "no-ui" not in features and "--no-webui" in options else set()
    features |= {"repack"} if "--no-repack" in options else set()
    version = _RELEASE.search(_text(outputs, "version"))
    values = {name: _listed(found.group(1)) for name, regex in _BRACES.items() if (found := regex.search(text))}
    devices = tuple(
        BuildDevice(match["name"], match["what"], int(match["mib"]) << 20)
        for match in _DEVICE.finditer(_text(outputs, "devices"))
        if not match["name"].startswith(("CPU", "RPC"))
    )
    return Build(
        engine=ID,
        release=_release(version),
        commit=version["commit"] if version else None,
        features=frozenset(features),
        values=values,
        devices=devices,
        digest=digest,
    )


def _read_module(at: InstallationSite, outputs: Mapping[str, Captured], digest: str) -> Build | BuildRefused:
    try:
        told = json.loads(_text(outputs, "module"))
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        return BuildRefused("failed", f"{at.executable} told nothing about its llama.cpp module.")
    if "missing" in told:
        return BuildRefused("missing-module", f"{at.executable} cannot import llama.cpp's module: {told['missing']}")
    parameters = frozenset(_strings(told.get("parameters")))
    if not {"n_ctx", "n_parallel", "hostnames"} <= parameters:
        return BuildRefused("not-llama-server", f"The module of {at.executable} lacks what a server needs.")
    features = {name for name, (_, parameter) in FEATURES.items() if parameter in parameters} | {"flash-attn-value"}
    system = str(told.get("system", ""))
    features |= {"repack"} if "REPACK = 1" in system else set()
    types = {name.removeprefix("GGML_TYPE_").lower() for name in _strings(told.get("types"))}
    return Build(
        engine=ID,
        release=str(told.get("release") or "unknown")[:80],
        commit=_known(told.get("commit")),
        features=frozenset(features),
        values={
            "cache_type_k": frozenset(types & set(_KV_TYPES)),
            "cache_type_v": frozenset(types & set(_KV_TYPES)),
            "pooling": _ends(told.get("pooling"), "LLAMA_POOLING_TYPE_"),
            "split_mode": _ends(told.get("split"), "LLAMA_SPLIT_MODE_"),
        },
        devices=tuple(_module_devices(told.get("devices"))),
        digest=digest,
    )


def _release(version: re.Match[str] | None) -> str:
    if version is None:
        return "unknown"
    return f"{version['release']}-b{version['build']}" if version["build"] else version["release"]


def _module_devices(listed: Any) -> Iterable[BuildDevice]:
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, dict) and not str(item.get("name", "CPU")).startswith(("CPU", "BLAS", "RPC")):
            amount = item.get("bytes")
            total = amount if isinstance(amount, int) and amount > 0 else None
            yield BuildDevice(str(item["name"]), str(item.get("description", "")), total)


def _digest(outputs: Iterable[Captured]) -> str:
    """Of all that was said, amounts of free memory aside: they change from call to call."""
    found = hashlib.sha256()
    for captured in outputs:
        for stream in (captured.stdout, captured.stderr):
            found.update(re.sub(rb", \d+ MiB free", b"", stream) + b"\0")
    return found.hexdigest()[:32]


def _text(outputs: Mapping[str, Captured], name: str) -> str:
    captured = outputs.get(name)
    return "" if captured is None else (captured.stdout + b"\n" + captured.stderr).decode("utf-8", "replace")


def _listed(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _ends(value: Any, prefix: str) -> frozenset[str]:
    return frozenset(name.removeprefix(prefix).lower() for name in _strings(value))


def _known(commit: Any) -> str | None:
    return commit[:40] if isinstance(commit, str) and commit not in {"", "unknown"} else None
