"""What a session of llama.cpp can do, before and after its start (E-16, E-17, E-21, E-77).

Before a start only what holds for every build and model is claimed. A session is for one task: an embedding session
does not chat although the engine would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.domain.context import LaunchPlan
from stoker.domain.models import ModelFacts, ModelKind
from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.ports.engines import Capabilities

_TASKS = {ModelKind.EMBEDDING: "embed", ModelKind.RERANK: "rerank"}
_NO = dict.fromkeys(
    (
        "chat", "completions", "responses", "messages", "count_tokens", "tokenize", "embeddings", "rerank", "tools",
        "forced_tools", "parallel_tools", "json_object", "json_schema", "grammar", "reasoning", "vision", "audio",
        "video", "logprobs", "seed", "adapters", "dimensions", "base64_embeddings", "token_prompts", "usage_in_streams",
    ),
    "no",
)  # fmt: skip
_ALWAYS = {
    "generate": (
        "completions", "tokenize", "json_object", "json_schema", "grammar", "logprobs", "seed", "token_prompts",
        "usage_in_streams",
    ),
    "embed": ("embeddings", "tokenize", "base64_embeddings", "token_prompts"),
    "rerank": ("rerank", "tokenize"),
}  # fmt: skip
_WITH_CHAT = ("chat", "responses", "messages", "count_tokens")
_UNKNOWN = ("tools", "forced_tools", "parallel_tools", "reasoning", "vision", "audio", "video")


def task_of(facts: ModelFacts, settings: LlamaCppSettings) -> str:
    return settings.task or _TASKS.get(facts.kind, "generate")


def expected(facts: ModelFacts, settings: LlamaCppSettings) -> Capabilities:
    """Before a start; what only the engine can tell is ``unknown``."""
    task = task_of(facts, settings)
    flags = _flags(task, has_chat=facts.has_chat_template)
    if task == "generate":
        flags.update(dict.fromkeys(_UNKNOWN, "unknown"))
    return Capabilities(task, flags)


def confirmed(plan: LaunchPlan, settings: LlamaCppSettings, props: Mapping[str, Any]) -> Capabilities:
    """After the start: what the engine reports of the template and of other senses."""
    del settings
    template = props.get("chat_template")
    has_chat = bool(template) if isinstance(template, str) else plan.facts.has_chat_template
    flags = _flags(plan.task, has_chat=has_chat and plan.facts.has_chat_template)
    if plan.task != "generate":
        return Capabilities(plan.task, flags)
    can = _table(props, "chat_template_caps")
    senses = _table(props, "modalities")
    flags["tools"] = flags["forced_tools"] = _word(can.get("supports_tools"))
    flags["parallel_tools"] = _word(can.get("supports_parallel_tool_calls"))
    flags["reasoning"] = (
        "yes" if can.get("supports_preserve_reasoning") or can.get("supports_reasoning_effort") else "unknown"
    )
    flags.update({name: _word(senses.get(name)) for name in ("vision", "audio", "video")})
    return Capabilities(plan.task, flags, max_choices=plan.slots)


def _flags(task: str, *, has_chat: bool) -> dict[str, str]:
    names = (*_ALWAYS[task], *(_WITH_CHAT if task == "generate" and has_chat else ()))
    return {**_NO, **dict.fromkeys(names, "yes")}


def _table(props: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = props.get(name)
    return value if isinstance(value, dict) else {}


def _word(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, "unknown") if isinstance(value, bool) else "unknown"
