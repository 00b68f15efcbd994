"""The OpenAI dialect: error objects, stream events, model entries and the forms of its bodies (R-74, R-77, R-78, R-94).

Knows nothing of connections, tickets or engines. Streams are read on bytes and only where a byte search says that a
line could matter; a finish reason is only ever read, never written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.errors import ErrorCode, StokerError, UsageError, openai_code
from stoker.gateway.dialect import Reading
from stoker.gateway.errors import stoker_member
from stoker.gateway.peek import Peeked, wrong

_FINISH, _OPEN_TIGHT, _OPEN_SPACED = b'"finish_reason"', b'"finish_reason":null', b'"finish_reason": null'
_CHOICES, _FILLED_CHOICES = b'"choices"', b'"choices":[{'
_EMPTY_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_PARTS = {"image_url": "vision", "image": "vision", "input_image": "vision"}
_PARTS |= {"input_audio": "audio", "audio_url": "audio", "video": "video", "video_url": "video"}
_PART_HINT = re.compile(rb'"(?:image|input_|audio|video)|\\\\u')
# Members that ask for nothing beyond plain work (E-19 names the others).
_PLAIN = frozenset(
    {
        "model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens",
        "temperature", "top_p", "seed", "stop", "user", "frequency_penalty", "presence_penalty",
    }
)  # fmt: skip
_FORMATS = {"json_object": "json_object", "json_schema": "json_schema", "text": ""}
_GRAMMARS = ("grammar", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex")
_ADAPTERS = ("lora", "adapters", "lora_request")
EMBEDDINGS = "/v1/embeddings"


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: msgspec.Raw = msgspec.Raw()


_EVENTS = msgspec.json.Decoder(_Event)


@dataclass(frozen=True, slots=True)
class OpenAI:
    """`Dialect` of the OpenAI routes, and of every route that is nobody's."""

    name: str = "openai"
    end_mark: bytes = b"data: [DONE]\n\n"

    def error_body(self, error: StokerError, request_id: str) -> bytes:
        return msgspec.json.encode({"error": _error_object(error, request_id)})

    def error_event(self, error: StokerError, request_id: str) -> bytes:
        return b"data: %b\n\n" % self.error_body(error, request_id)

    def keepalive(self, waiting_for: str, elapsed_s: int) -> bytes:
        """One comment line without an empty line after it: nothing to any parser of event streams (R-46)."""
        return f": stoker waiting={waiting_for} elapsed_s={elapsed_s}\n".encode()

    def is_error(self, body: bytes) -> bool:
        try:
            seen = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            inner = msgspec.json.decode(seen["error"], type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError):
            return False
        return "message" in inner

    def reading(self, peeked: Peeked) -> Reading:
        return Reading(choices=peeked.choices * _prompts(peeked), wants_usage=peeked.include_usage)

    def is_dull(self, data: bytes) -> bool:
        return (
            b"[DONE]" not in data
            and b'"error"' not in data
            and data.count(_FINISH) == data.count(_OPEN_TIGHT) + data.count(_OPEN_SPACED)
            and (data.count(_CHOICES) == data.count(_FILLED_CHOICES) or _EMPTY_CHOICES.search(data) is None)
        )

    def read_line(self, line: bytes, reading: Reading) -> bool:
        if not line.startswith(b"data:"):
            return True
        payload = line[5:].strip()
        if payload == b"[DONE]":
            reading.marked = True
            return True
        try:
            event = _EVENTS.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return True
        if bytes(event.error) not in {b"", b"null"}:
            reading.failed = True
            return True
        if event.choices is None:
            return True
        for choice in event.choices:
            if choice.finish_reason is not None and choice.index >= 0:
                reading.finished |= 1 << min(choice.index, 1023)
        return bool(event.choices) or reading.wants_usage

    def check(self, path: str, peeked: Peeked) -> None:
        """R-94 for embeddings, R-89 for links; other members are the engine's to judge."""
        if path == EMBEDDINGS:
            _check_input(peeked.value("input"))

    def asks(self, path: str, peeked: Peeked) -> Mapping[str, str]:
        """E-19, as far as this dialect's routes can show it."""
        found: dict[str, str] = {}
        members = peeked.members
        if members.keys() <= _PLAIN and "prompt" not in members:
            return _part_asks(peeked)
        for name in ("tools", "functions"):
            if name in members and peeked.value(name):
                found["tools"] = name
        if "tool_choice" in members and peeked.value("tool_choice") not in (
            None,
            "none",
            "auto",
        ):  # a tuple: it may be an object
            found["forced_tools"] = "tool_choice"
        if "response_format" in members:
            found |= _format_ask(peeked.value("response_format"))
        for ask, names in (("grammar", _GRAMMARS), ("adapters", _ADAPTERS)):
            if present := [name for name in names if name in members]:
                found[ask] = present[-1]
        if wanted := [name for name in ("logprobs", "top_logprobs") if name in members and peeked.value(name)]:
            found["logprobs"] = wanted[-1]
        if peeked.choices > 1:
            found["choices"] = "n"
        if "dimensions" in members:
            found["dimensions"] = "dimensions"
        if path == EMBEDDINGS and peeked.value("encoding_format") not in (None, "float"):
            found["base64_embeddings"] = "encoding_format"
        if _is_tokens(peeked, "input" if path == EMBEDDINGS else "prompt"):
            found["token_prompts"] = "input" if path == EMBEDDINGS else "prompt"
        return found | _part_asks(peeked)

    def model_entry(self, view: Any, capabilities: tuple[str, ...] | None) -> Mapping[str, Any]:
        return {
            "id": view.name,
            "object": "model",
            "created": int(view.created),
            "owned_by": "stoker",
            "stoker": {
                "state": view.state,
                "context_tokens": view.context_tokens,
                "capabilities": capabilities,
                "aliases": [name for name in view.names if name != view.name],
            },
        }


OPENAI = OpenAI()


def _error_object(error: StokerError, request_id: str) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": error.row.openai_type,
        "param": error.param,
        "code": openai_code(error.code),
        "stoker": stoker_member(error, request_id),
    }


def _check_input(value: Any) -> None:
    """The four forms of an embedding input; a mixed or empty one has no right number of answers (R-94)."""
    if value is None:
        raise wrong("input", "The body has no 'input'.")
    if isinstance(value, str):
        if not value:
            raise wrong("input", "The value of 'input' is an empty string.")
        return
    if not isinstance(value, list) or not value:
        raise wrong("input", "The value of 'input' is neither a string nor a list with members.")
    if all(isinstance(item, str) for item in value):
        if not all(value):
            raise wrong("input", f"Member {value.index('')} of 'input' is an empty string.")
        return
    if _are_tokens(value):
        return
    if not all(isinstance(item, list) and item and _are_tokens(item) for item in value):
        raise wrong("input", "The value of 'input' is not one of: string, strings, token numbers, lists of them.")


def _are_tokens(value: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in value)


def _is_tokens(peeked: Peeked, name: str) -> bool:
    raw = peeked.members.get(name)
    if raw is None or bytes(memoryview(raw)[:1]) != b"[":
        return False
    value = peeked.value(name)
    return bool(value) and not isinstance(value[0], str)


def _prompts(peeked: Peeked) -> int:
    """How many prompts a completion has: each is answered by choices of its own."""
    raw = peeked.members.get("prompt")
    if raw is None or bytes(memoryview(raw)[:1]) != b"[":
        return 1
    value = peeked.value("prompt")
    return len(value) if value and isinstance(value[0], str | list) else 1


def _format_ask(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    kind = value.get("type") if isinstance(value, dict) else None
    ask = _FORMATS.get(kind) if isinstance(kind, str) else None
    if ask is None:
        raise UsageError(
            ErrorCode.UNSUPPORTED_CAPABILITY,
            "The value of 'response_format.type' is not one of: text, json_object, json_schema.",
            param="response_format",
            remedy="Ask for one of these formats.",
        )
    return {ask: "response_format"} if ask else {}


def _part_asks(peeked: Peeked) -> dict[str, str]:
    """Asks of content parts. Messages are decoded only if a part's kind stands somewhere in their bytes."""
    raw = peeked.members.get("messages")
    if raw is None:
        return {}
    text = bytes(raw)
    if not _PART_HINT.search(text):
        return {}
    found: dict[str, str] = {}
    messages = peeked.value("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for place, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in _PARTS:
                where = f"messages[{number}].content[{place}].{kind}"
                found.setdefault(_PARTS[kind], where)
                _refuse_link(part.get(kind), where)
    return found


def _refuse_link(value: Any, where: str) -> None:
    """Nothing is fetched on a client's word; data URLs are no links (R-89)."""
    link = value.get("url") if isinstance(value, dict) else value
    if isinstance(link, str) and not link[:5].lower().startswith("data:"):
        raise UsageError(
            ErrorCode.REMOTE_MEDIA_REFUSED,
            f"{where} is a link; this deployment takes media only as data in the request.",
            param=where,
            remedy="Send the content itself as a data: URL.",
        )
