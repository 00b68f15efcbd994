"""llama.cpp on the request path: what may pass, what is edited, and what its answers mean (E-51 to E-62, E-76 to E-79).

Everything is computed once per session. An edit names top-level members only; text of the engine never becomes a
message of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.domain.context import LaunchPlan
from stoker.engines.llama_cpp import exits
from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.errors import ErrorCode
from stoker.ports.engines import (
    Abort,
    Accepted,
    BreakCause,
    Capabilities,
    ConnectionFacts,
    Edits,
    EngineCall,
    Peek,
    Problem,
    Route,
    RoutePolicy,
)

# capability -> routes that need it
_ROUTES: tuple[tuple[str, Route], ...] = (
    ("chat", Route("POST", "/v1/chat/completions")),
    ("completions", Route("POST", "/v1/completions")),
    ("responses", Route("POST", "/v1/responses")),
    ("messages", Route("POST", "/v1/messages", dialect="anthropic")),
    ("count_tokens", Route("POST", "/v1/messages/count_tokens", kind="light", dialect="anthropic")),
    ("embeddings", Route("POST", "/v1/embeddings")),
    ("rerank", Route("POST", "/v1/rerank")),
    ("tokenize", Route("POST", "/tokenize", kind="light")),
    ("tokenize", Route("POST", "/detokenize", kind="light")),
)
_ASKS = (
    "tools", "forced_tools", "json_object", "json_schema", "grammar", "reasoning", "vision", "audio", "video",
    "logprobs", "adapters", "dimensions", "base64_embeddings", "token_prompts",
)  # fmt: skip
CONTROL = frozenset({"id_slot", "slot_id", "n_keep", "lora"})

# path -> members that may hold the client's limit; the first is the one written when none is named
LIMITS = {
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/completions": ("max_tokens",),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}
_INPUTS = {
    "/v1/chat/completions": "messages",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/embeddings": "input",
    "/v1/rerank": "documents",
}
_SAMPLED = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
_ABORT = Abort(
    streamed="closes",
    plain="runs-on",
    settle_s=0.3,
    busy=EngineCall("GET", "/slots"),
    busy_every_s=3.0,
    free_line=r"release: id\s+\d+ \| task \d+",
)
_CONNECTION = ConnectionFacts(idle_s=4.0)  # the server closes an idle connection after 5 s
_TOO_LARGE = re.compile(r"input \((\d+) tokens\) is too large to process.*?\(current batch size: (\d+)\)")
_UNSUPPORTED = re.compile(r"(\w+) input is not supported|does not support (\w+)")
_MESSAGES = re.compile(r"jinja|chat template|conversation roles", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LlamaCppWire:
    """One session's wire. ``cap`` is the longest answer; ``sampling`` are members to insert, already as JSON."""

    policy: RoutePolicy
    cap: int | None = None
    sampling: Mapping[str, bytes] = field(default_factory=dict)
    connection: ConnectionFacts = _CONNECTION
    abort: Abort = _ABORT

    def edit(self, route: Route, peek: Peek) -> Edits | Problem | None:
        members = peek.members
        if "response_format" in members:
            problem = _check_schema(members["response_format"])
            if problem is not None:
                return problem
        changes: dict[str, bytes | None] = {}
        if self.cap is not None and route.path in LIMITS:
            problem = _cap(self.cap, LIMITS[route.path], members, changes)
            if problem is not None:
                return problem
        if self.sampling and route.path in _SAMPLED:
            changes |= {name: value for name, value in self.sampling.items() if members.get(name) is None}
        return Edits(changes) if changes else None

    def map_error(self, route: Route, status: int, body: bytes) -> Problem | None:
        kind, message, numbers = _read_error(body)
        param = _INPUTS.get(route.path)
        if kind == "exceed_context_size_error":
            return _overflow(param, numbers.get("n_ctx"), numbers.get("n_prompt_tokens"))
        if match := _TOO_LARGE.search(message):
            return _overflow(param, int(match[2]), int(match[1]))
        if "Context size has been exceeded" in message:
            return _overflow(param, None, None)
        if status in {401, 403}:
            return Problem(ErrorCode.ENGINE_FAILED, "The engine refused the token that Stoker gave it.")
        if kind == "not_supported_error" or (match := _UNSUPPORTED.search(message)):
            return Problem(
                ErrorCode.UNSUPPORTED_CAPABILITY,
                "The model cannot take a part of this request.",
                param=param,
                remedy="Send text alone, or use a model that can.",
            )
        if status >= 500 and _MESSAGES.search(message):
            return Problem(
                ErrorCode.INVALID_PARAMETER, "The model's chat template cannot render these messages.", param=param
            )
        if kind == "invalid_request_error" and status >= 500:
            return Problem(ErrorCode.INVALID_PARAMETER, "The engine cannot read this request.", param=param)
        return None

    def is_loading(self, status: int, body: bytes) -> bool:
        return status == 503 and b"unavailable_error" in body[:4096]

    def describe_break(self, lines: Sequence[str]) -> BreakCause | None:
        return exits.describe_break(lines)


def wire(plan: LaunchPlan, accepted: Accepted) -> LlamaCppWire:
    settings: LlamaCppSettings = plan.settings
    generates = plan.task == "generate"
    return LlamaCppWire(
        policy=policy(accepted.capabilities),
        cap=settings.max_output_tokens if generates else None,
        sampling=_sampling(settings) if generates else {},
    )


def policy(capabilities: Capabilities) -> RoutePolicy:
    """E-18: only what this session can do is reachable, and every ask has an answer."""
    return RoutePolicy(
        routes=frozenset(route for name, route in _ROUTES if capabilities.can(name)),
        asks={ask: "yes" if capabilities.can(ask) else "no" for ask in _ASKS},
        control=CONTROL,
        max_choices=capabilities.max_choices,
    )


def _sampling(settings: LlamaCppSettings) -> dict[str, bytes]:
    given = settings.sampling.model_dump(exclude_none=True)
    return {name: json.dumps(value).encode() for name, value in given.items()}


def _cap(
    cap: int, names: tuple[str, ...], members: Mapping[str, Any], changes: dict[str, bytes | None]
) -> Problem | None:
    """E-52: the smaller of the client's limit and ours, in exactly one member."""
    named = {name: value for name in names if (value := members.get(name)) is not None}
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return Problem(
                ErrorCode.INVALID_PARAMETER, f"The value of {name!r} is not a positive whole number.", param=name
            )
    if not named:
        changes.update(dict.fromkeys((name for name in names[1:] if name in members), None))
        changes[names[0]] = str(cap).encode()
        return None
    limit = min(cap, *named.values())
    keep = names[0] if len(named) > 1 else next(iter(named))
    if named[keep] != limit:
        changes[keep] = str(limit).encode()
    for name in names:
        if name != keep and name in members:
            changes[name] = None
    return None


def _check_schema(value: Any) -> Problem | None:
    """E-54: llama.cpp takes the public form, so only its shape is judged."""
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        return None
    wrapper = value.get("json_schema")
    if isinstance(wrapper, dict) and isinstance(wrapper.get("schema"), dict):
        return None
    where = "response_format.json_schema" + (".schema" if isinstance(wrapper, dict) else "")
    return Problem(ErrorCode.INVALID_PARAMETER, f"The value of {where!r} is not an object.", param=where)


def _overflow(param: str | None, limit: int | None, requested: int | None) -> Problem:
    told = "" if requested is None or limit is None else f": {requested} tokens were sent and {limit} fit"
    return Problem(
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        f"The request is longer than the model's window{told}.",
        param=param,
        remedy="Send less text, or raise context_tokens of the deployment.",
        details={"limit_tokens": limit, "requested_tokens": requested},
    )


def _read_error(body: bytes) -> tuple[str, str, dict[str, int]]:
    """Type, message and numbers of the engine's error object; empty for anything else."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return "", "", {}
    inner = told.get("error") if isinstance(told, dict) else None
    if not isinstance(inner, dict):
        return "", "", {}
    numbers = {
        name: value
        for name in ("n_ctx", "n_prompt_tokens")
        if isinstance(value := inner.get(name), int) and not isinstance(value, bool) and value >= 0
    }
    kind, message = inner.get("type"), inner.get("message")
    return kind if isinstance(kind, str) else "", message if isinstance(message, str) else "", numbers
