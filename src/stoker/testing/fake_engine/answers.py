"""The shapes of the fake engine's answers: what a prompt counts, what a job is, and the JSON that comes of it.

Pure. Invariants: the same request and seed give the same bytes; a token is a word.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

from stoker.testing.fake_engine.life import Life, Slot

CREATED = 1_700_000_000  # answers carry one fixed date
WORD = re.compile(r"\S+\s*")


@dataclass(slots=True)
class Job:
    """One piece of work: what was asked, the words to answer with, and where it runs."""

    kind: str
    number: int
    slot: Slot
    prompt: tuple[str, ...]
    words: list[str]
    finish: str
    cached: int
    wants_usage: bool


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def read_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def shared_words(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many leading words two prompts share."""
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def read_prompt(kind: str, body: dict[str, Any]) -> tuple[str, ...]:
    """The words that count as prompt tokens."""
    if kind == "chat":
        contents = [message.get("content") for message in body["messages"]] if body.get("messages") else []
        parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
        texts = [part.get("text", "") if isinstance(part, dict) else part or "" for part in parts]
    else:
        value = body.get("prompt" if kind == "completions" else "input", "")
        texts = [str(item) for item in value] if isinstance(value, list) else [value]
    return tuple(word for text in texts for word in WORD.findall(text))


def usage(job: Job) -> dict[str, Any]:
    made = len(job.words)
    return {
        "completion_tokens": made,
        "prompt_tokens": len(job.prompt),
        "total_tokens": made + len(job.prompt),
        "prompt_tokens_details": {"cached_tokens": job.cached},
    }


def chunk(
    life: Life, job: Job, delta: dict[str, Any], finish: str | None = None, *, whole: bool = False
) -> dict[str, Any]:
    """One stream event, or with ``whole`` the one answer."""
    chat = job.kind == "chat"
    choice: dict[str, Any] = {"finish_reason": finish, "index": 0}
    if not chat:
        choice["text"] = delta.get("content") or ""
    elif whole:
        choice["message"] = {"role": "assistant", **delta}
    else:
        choice["delta"] = delta
    named = ("chat.completion" if whole else "chat.completion.chunk") if chat else "text_completion"
    return {
        "choices": [choice],
        "created": CREATED,
        "id": f"chatcmpl-fake-{life.options.seed}-{job.number}",
        "model": life.name,
        "system_fingerprint": "fake",
        "object": named,
    }


def embeddings(life: Life, job: Job) -> dict[str, Any]:
    """Eight numbers that depend on the text and the seed alone."""
    seed = f"{life.options.seed} {' '.join(job.prompt)}"
    vector = [zlib.crc32(f"{axis} {seed}".encode()) / 2**32 - 0.5 for axis in range(8)]
    return {
        "object": "list",
        "model": life.name,
        "data": [{"object": "embedding", "index": 0, "embedding": vector}],
        "usage": {"prompt_tokens": len(job.prompt), "total_tokens": len(job.prompt)},
    }
