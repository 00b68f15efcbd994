"""How a start of llama.cpp is followed and when it counts as ready (E-38 to E-42, E-73, E-74).

The port opens first and answers 503 until the model is in memory; the health route is the proof. `judge_ready` then
compares what the engine says it granted with what was planned: less is refused, more is a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from stoker.domain.context import LaunchPlan
from stoker.engines.llama_cpp import abilities
from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.ids import RAM
from stoker.ports.engines import STAGE_ORDER, Accepted, ProbeRoute, ReadySeen, Seen, Stage, Startup, Verdict

PROPS = "/props"
STARTUP = Startup(
    probe=ProbeRoute("/health", 200, b'"ok"', timeout_s=2.0),
    liveness=ProbeRoute("/health", 200, b'"ok"', timeout_s=5.0),
    also=(PROPS,),
)

# tried in order, the first match counts; a word that must stand in the line keeps this cheap
_STAGES = (
    ("loading model '", Stage.LOADING_WEIGHTS),
    ('{"stage": "opening"}', Stage.LOADING_WEIGHTS),
    ("load_tensors:", Stage.LOADING_WEIGHTS),
    ("constructing llama_context", Stage.WARMING_UP),
    ("warming up the model", Stage.WARMING_UP),
    ("initializing, n_slots =", Stage.WARMING_UP),
    ("model loaded", Stage.VERIFYING),
    ('{"stage": "ready"', Stage.VERIFYING),
)
_MEMORY = re.compile(r"(\S+?)(?:_Mapped)? +(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")
_TERMS = {"model": "weights", "KV": "kv", "RS": "state", "compute": "compute", "output": "output"}
_NUMBERS = (
    ("offloaded ", re.compile(r"offloaded (?P<layers_on_device>\d+)/(?P<layers>\d+) layers")),
    ("n_ctx_slot", re.compile(r"n_slots = (?P<slots>\d+), n_ctx_slot = (?P<context_tokens>\d+)")),
)
_LISTENING = re.compile(r"listening on (?:http|unix)://")
_FAILED = '{"stage": "failed"'


def read_line(text: str, seen: Seen) -> Seen:
    """What ``text`` adds to what the log has told; the same record if nothing (S-99: stages never fall)."""
    stage = seen.stage
    for word, reached in _STAGES:
        if word in text:
            stage = max(stage, reached, key=STAGE_ORDER.__getitem__)
            break
    memory = _memory(text, seen.memory) if "buffer size" in text else seen.memory
    numbers = _numbers(text, seen.numbers)
    listening = seen.listening or ("listening on" in text and _LISTENING.search(text) is not None)
    fatal = seen.fatal or (text if text.startswith(_FAILED) else None)
    changed = (stage, seen.percent, numbers, memory, listening, fatal)
    return (
        seen
        if changed == (seen.stage, seen.percent, seen.numbers, seen.memory, seen.listening, seen.fatal)
        else Seen(*changed)
    )


def _memory(text: str, memory: Mapping[tuple[str, str], int]) -> Mapping[tuple[str, str], int]:
    match = _MEMORY.search(text)
    if match is None:
        return memory
    device, term, size = match.groups()
    name = "repacked" if device == "CPU_REPACK" else _TERMS[term]
    pool = RAM if device.startswith("CPU") or device.endswith("_Host") else device
    amount = _mib(size)
    return memory if amount is None else {**memory, (pool, name): memory.get((pool, name), 0) + amount}


def _mib(text: str) -> int | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    return int(amount * (1 << 20)) if amount < 1 << 40 else None


def _numbers(text: str, numbers: Mapping[str, int]) -> Mapping[str, int]:
    for word, regex in _NUMBERS:
        if word in text and (match := regex.search(text)):
            found = {name: int(value) for name, value in match.groupdict().items() if len(value) < 19}
            return {**numbers, **found}
    return numbers


def judge_ready(seen: ReadySeen) -> Accepted | Verdict:
    """E-41, once, after the first good probe."""
    plan, props = seen.plan, _props(seen.bodies)
    settings: LlamaCppSettings = plan.settings
    told = _told(props, seen.seen.numbers)
    warnings: list[str] = []
    for name, cause, planned, unit in (
        ("context_tokens", "context-below-plan", plan.context_tokens, "tokens a sequence"),
        ("slots", "slots-below-plan", plan.slots, "slots"),
        ("layers_on_device", "layers-below-plan", _layers_asked(plan), "layers on the card"),
    ):
        given = told.get(name)
        if given is not None and given < planned:
            return refusal(cause, f"llama.cpp granted {given} {unit}, and {planned} were planned.", given, planned)
        if given is not None and given > planned and name != "layers_on_device":
            warnings.append(f"llama.cpp granted {given} {unit}; {planned} were planned")
    alias = props.get("model_alias")
    if isinstance(alias, str) and alias and alias != plan.deployment and "," not in plan.deployment:
        return refusal("wrong-model", f"llama.cpp serves {alias[:80]!r}, and {plan.deployment!r} was started.", 0, 0)
    capabilities = abilities.confirmed(plan, settings, props)
    if missing := [name for name in settings.require if not capabilities.can(name)]:
        return refusal("capability-missing", f"The session cannot do what is required: {', '.join(missing)}.", 0, 0)
    width, context = told.get("slots"), told.get("context_tokens")
    if width is None or context is None:
        warnings.append("unverified: llama.cpp did not tell slots and window")
    return Accepted(
        width=plan.slots if width is None else width,
        context_tokens=plan.context_tokens if context is None else context,
        capabilities=capabilities,
        engine_names=(alias,) if isinstance(alias, str) and alias else (),
        warnings=tuple(warnings),
    )


def refusal(cause: str, message: str, given: int, planned: int) -> Verdict:
    numbers = {"given": given, "planned": planned} if planned else {}
    return Verdict(
        "ready-refused", cause, message, "Lower what is asked of this deployment, or name the model again.", numbers
    )


def _layers_asked(plan: LaunchPlan) -> int:
    """A plan may ask for more layers than there are; the output counts as one."""
    return min(plan.gpu_layers, plan.facts.layers + 1) if plan.facts.layers else 0


def _told(props: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, int]:
    """The route's figures before the log's: it is asked after everything was allocated."""
    inner = props.get("default_generation_settings")
    reported = {
        "slots": props.get("total_slots"),
        "context_tokens": inner.get("n_ctx") if isinstance(inner, dict) else None,
    }
    told = dict(numbers)
    told.update({name: value for name, value in reported.items() if type(value) is int and value > 0})
    return told


def _props(bodies: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        props = json.loads(bodies.get(PROPS, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return props if isinstance(props, dict) else {}
