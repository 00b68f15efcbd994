"""Why llama.cpp ended: its own patterns, and one sentence for each cause (E-44 to E-50, E-75).

The wheel reports every failed load with the same words; the reason stands in the log before them. Lines at
information or warning level never decide. After ``ready`` only the tail is handed in, by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stoker.domain.context import LaunchPlan
from stoker.engines.patterns import ARGUMENT, CARD_MEMORY, HOST_MEMORY, MODEL, OTHER, PORT, SHARED, pattern
from stoker.engines.verdicts import Finding, Table, excerpt, numbers_of, short
from stoker.errors import ErrorCode
from stoker.ports.engines import BreakCause, ExitSeen, Verdict
from stoker.ports.units import Exit

COMPANION = MODEL - 1  # before the model's own file: its words are used for companions too
_DEVICE = r"(?:CUDA|ROCm|Vulkan|Metal|MTL)\S*"

OWN = (
    pattern(ARGUMENT, "bad-setting", "unknown-flag", r"invalid argument: (?P<what>\S+)"),
    pattern(ARGUMENT, "bad-setting", "devices",
            r'error while handling argument "(?P<what>\S+)": (?P<why>invalid device.*)'),
    pattern(ARGUMENT, "bad-setting", "bad-value", r'error while handling argument "(?P<what>\S+)": (?P<why>.*)'),
    pattern(ARGUMENT, "bad-setting", "parameter",
            r'"cause": "parameter", "parameter": "(?P<what>[\w.]+)", "detail": "(?P<why>.*)"\}'),
    pattern(PORT, "port-in-use", "port", r"couldn't bind HTTP server socket, hostname: (?P<what>[^,]+)"),
    pattern(COMPANION, "bad-setting", "companion", r"Failed to load CLIP model from (?P<what>\S+)"),
    pattern(COMPANION, "bad-setting", "companion", r"failed to load draft model"),
    pattern(COMPANION, "bad-setting", "companion", r"expect general\.type to be 'adapter'"),
    pattern(MODEL, "model-unsupported", "architecture", r"unknown model architecture: '(?P<what>[^']*)'"),
    pattern(MODEL, "model-unsupported", "tokenizer", r"unknown pre-tokenizer type: '(?P<what>[^']*)'"),
    pattern(MODEL, "model-unsupported", "version", r"this GGUF file is version (?P<what>\d+)"),
    pattern(MODEL, "model-unsupported", "quantization", r"invalid ggml type (?P<what>\d+)"),
    pattern(MODEL, "model-file-missing", "missing-file", r"failed to open GGUF file .*No such file or directory"),
    pattern(MODEL, "model-file-corrupt", "unreadable-file", r"failed to open GGUF file .*\((?P<why>[^()]+)\)"),
    pattern(MODEL, "model-file-corrupt", "bad-magic", r"invalid magic characters|failed to read magic"),
    pattern(MODEL, "model-file-corrupt", "truncated-file", r"data is not within the file bounds"),
    pattern(MODEL, "model-file-corrupt", "truncated-file",
            r"gguf_init_from_\w+: failed to read (?:key-value pairs|header|tensor \w+)"),
    pattern(MODEL, "model-file-corrupt", "incomplete-file",
            r"missing tensor '(?P<what>[^']*)'|wrong number of tensors|tensor '(?P<name>[^']*)' has wrong shape"),
    pattern(MODEL, "model-file-corrupt", "incomplete-file", r"error loading model (?:hyperparameters|vocabulary): "),
    pattern(MODEL, "bad-setting", "flag-combination", r"(?P<what>quantized V cache) requires flash_attn"),
    pattern(CARD_MEMORY, "device-out-of-memory", "weights", rf"unable to allocate {_DEVICE} buffer"),
    pattern(HOST_MEMORY, "host-out-of-memory", "kv-cache", r"failed to allocate buffer for kv cache"),
    pattern(HOST_MEMORY, "host-out-of-memory", "weights", r"unable to allocate CPU\S* buffer"),
    pattern(HOST_MEMORY, "host-out-of-memory", "compute", r"failed to allocate compute"),
)  # fmt: skip

_ECHOES = (  # lines of the same failure that are less exact than those above
    pattern(OTHER, "engine-exited", "other", r"error loading model|terminate called|what\(\):"),
)
TABLE = Table((*OWN, *SHARED))
_ERRORS = Table(_ECHOES)

DECOYS = re.compile(
    r"common_fit_params:|failed to measure the memory of the extra model|possible training context overflow"
)
_PREFIX = re.compile(r"\d+\.\d\d\.\d{3}\.\d{3} ([A-Z]) ")
_SIZES = (
    re.compile(r"attempted to allocate\s+(?P<requested_mib>[\d.]+) MB"),
    re.compile(r"allocating (?P<requested_mib>[\d.]+) MiB on device (?P<device>\d+)"),
    re.compile(r"failed to allocate \S*\s*buffer of size (?P<requested_bytes>\d+)"),
)
_SIGNALS = {4: "illegal-instruction", 6: "engine-fault", 7: "engine-fault", 8: "engine-fault", 11: "engine-fault"}


class _Words(NamedTuple):
    sentence: str
    remedy: str


# By (kind, cause), else by kind. {what} and {why} come from the deciding line, the rest is counted by us.
_SENTENCES: dict[tuple[str, str] | str, _Words] = {
    ("bad-setting", "unknown-flag"): _Words(
        "This build of llama.cpp does not know the argument {what}.",
        "Remove it from engine_args, or use another build.",
    ),
    ("bad-setting", "devices"): _Words(
        "llama.cpp does not see a device of the plan: {why}.", "Check the driver, or run the model on the CPU."
    ),
    ("bad-setting", "bad-value"): _Words("llama.cpp refuses {what}: {why}.", "Correct the setting behind it."),
    ("bad-setting", "parameter"): _Words(
        "The embedded build of llama.cpp cannot be given {what}: {why}.", "Remove the setting, or install llama-server."
    ),
    ("bad-setting", "companion"): _Words(
        "A file that goes with the model (projector, adapter or draft) cannot be used by llama.cpp.",
        "Check that it belongs to this model.",
    ),
    ("bad-setting", "flag-combination"): _Words(
        "A quantised value cache needs flash attention.", "Set flash_attention on, or cache_type_v to f16."
    ),
    "bad-setting": _Words("llama.cpp refuses its arguments: {what}.", "Correct the settings of this deployment."),
    "port-in-use": _Words("llama.cpp could not listen on {what}: something else does.", "Stop what holds it."),
    ("model-unsupported", "architecture"): _Words(
        "This build of llama.cpp does not know the architecture {what}.", "Use a newer build, or another model."
    ),
    ("model-unsupported", "version"): _Words(
        "The model file is GGUF version {what}, which this build of llama.cpp cannot read.",
        "Use a newer build, or a file of version 3.",
    ),
    "model-unsupported": _Words(
        "This build of llama.cpp cannot run the model ({cause} {what}).", "Use a newer build, or another model."
    ),
    "model-file-missing": _Words("The model file is not there.", "Pull the model again, or correct its path."),
    ("model-file-corrupt", "bad-magic"): _Words(
        "The file is no GGUF model: its first bytes are wrong.", "Pull the model again, or name a GGUF file."
    ),
    ("model-file-corrupt", "truncated-file"): _Words(
        "The model file ends too early; part of it is missing.", "Pull the model again."
    ),
    "model-file-corrupt": _Words("The model file cannot be read as a whole model.", "Pull the model again."),
    "installation-broken": _Words("This build of llama.cpp does not run here: {what}.", "Install it again."),
    "device-out-of-memory": _Words(
        "The card has no room for {part}{size}.", "Lower context_tokens or gpu_layers, or free the card."
    ),
    "host-out-of-memory": _Words(
        "The system has no memory for {part}{size}.", "Lower context_tokens or slots, or free memory."
    ),
    "device-lost": _Words("The card failed while llama.cpp used it.", "Look at the system's log; restart if it stays."),
    ("engine-exited", "host-limits"): _Words("A limit of the system ended llama.cpp: {what}.", "Raise that limit."),
    "illegal-instruction": _Words(
        "This build of llama.cpp uses instructions that this processor does not have.",
        "Install a build for this processor.",
    ),
    "engine-fault": _Words("llama.cpp broke down{how}.", "Look at the end of its log; try another build."),
    "engine-exited": _Words("llama.cpp ended{how}.", "Look at the end of its log."),
}
_PARTS = {
    "kv-cache": "the cache of {tokens} tokens",
    "weights": "the weights",
    "compute": "the scratch memory",
    "process": "what llama.cpp needs",
}


def explain(seen: ExitSeen) -> Verdict:
    """Always a verdict: the log's, else the signal's, else that it ended."""
    finding = TABLE.find(seen.lines, may_decide)
    kind, cause = _without_log(seen.exit) if finding is None else (finding.pattern.kind, finding.pattern.cause)
    if finding is not None and cause == "kv-cache" and _on_card(seen):
        kind = "device-out-of-memory"
    numbers = numbers_of(seen.lines, _SIZES) if "out-of-memory" in kind else {}
    decisive = finding.line if finding is not None else _last_error(seen)
    words = _SENTENCES.get((kind, cause)) or _SENTENCES[kind]
    members = _members(seen, finding, cause, numbers)
    return Verdict(
        kind=kind,
        cause=cause,
        message=words.sentence.format_map(members),
        remedy=words.remedy,
        numbers=numbers,
        excerpt=excerpt(seen.lines, _is_worth_reading),
        decisive_line=None if decisive is None else short(decisive),
    )


def describe_break(lines: Sequence[str]) -> BreakCause | None:
    """E-60: why a stream broke, from the session's last lines."""
    finding = TABLE.find(lines, may_decide)
    if finding is not None and finding.pattern.kind in {"device-out-of-memory", "host-out-of-memory"}:
        return BreakCause(ErrorCode.DEVICE_OUT_OF_MEMORY, numbers_of(lines, _SIZES))
    for line in reversed(lines):
        if "cleaning up before exit" in line:
            return BreakCause(ErrorCode.SESSION_STOPPED)
        if "GGML_ASSERT(" in line or "terminate called" in line:
            return BreakCause(ErrorCode.ENGINE_FAULT)
        if "send_error: task" in line:
            return BreakCause(ErrorCode.ENGINE_FAILED)
    return None


def level(line: str) -> str:
    """I, W, E, D of the engine's own lines; empty for what others print."""
    match = _PREFIX.match(line)
    return match.group(1) if match else ""


def may_decide(line: str) -> bool:
    """E-47: no decoy, and no line that the engine itself calls information or warning."""
    return level(line) in {"", "E"} and DECOYS.search(line) is None


def _is_worth_reading(line: str) -> bool:
    return may_decide(line) and (level(line) == "E" or TABLE.concerns(line) or _ERRORS.concerns(line))


def _last_error(seen: ExitSeen) -> str | None:
    return next((line for line in reversed(seen.lines) if _is_worth_reading(line)), None)


def _on_card(seen: ExitSeen) -> bool:
    return any(re.search(rf"failed to allocate {_DEVICE} buffer|MiB on device \d", line) for line in seen.lines)


def _without_log(end: Exit | None) -> tuple[str, str]:
    if end is None:
        return "engine-exited", "other"
    number = end.signal or (end.code - 128 if end.code is not None and end.code > 128 else None)
    return _SIGNALS.get(number or 0, "engine-exited"), "other"


def _members(seen: ExitSeen, finding: Finding | None, cause: str, numbers: Mapping[str, int]) -> dict[str, str]:
    words = {} if finding is None else {name: _quiet(text) for name, text in finding.words.items()}
    requested = numbers.get("requested_bytes")
    return {
        "what": "something",
        "why": "no reason given",
        "cause": cause,
        "part": _PARTS.get(cause, _PARTS["process"]).format(tokens=_tokens(seen.plan)),
        "size": "" if requested is None else f", {requested / (1 << 20):.0f} MiB in one piece",
        "how": _how(seen.exit),
        **words,
    }


def _quiet(text: str) -> str:
    """A word of the engine inside a sentence of ours: no full stop, no path."""
    return re.sub(r"(?:/[^\s/]+)+/", "", text).rstrip(". ")


def _tokens(plan: LaunchPlan | None) -> str:
    return "its" if plan is None else str(plan.context_tokens * plan.slots)


def _how(end: Exit | None) -> str:
    if end is None:
        return ""
    return f" by signal {end.signal}" if end.signal else f" with status {end.code}"
