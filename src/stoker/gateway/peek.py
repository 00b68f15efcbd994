"""Reading a request body without taking it apart, and changing a member without touching the rest (R-60 to R-63).

One pass of msgspec proves that the body is a JSON object and yields its top-level members as undecoded slices.
Nothing is ever put together again: an edit replaces, removes or inserts one member and every other byte stays as it
came. A member that is read or changed and occurs twice is refused, so no two readers can see different values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from stoker.errors import ErrorCode, StokerError, UsageError

Buffer = bytes | memoryview

MODEL_NAME_BYTES = 512
_READ = ("model", "stream", "stream_options", "n")
_DECODER = msgspec.json.Decoder(dict[str, Raw])
_OFFSET = re.compile(r"\(byte (\d+)\)")
_OPEN = re.compile(rb"[ \t\r\n]*\{")
_KEY = re.compile(rb'[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_AFTER = re.compile(rb"[ \t\r\n]*([,}])")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^\s\[\]{},:"]+', re.DOTALL)


class Member(NamedTuple):
    """Where one top-level member lies in its body."""

    name: str
    key_start: int
    value_start: int
    value_end: int


@dataclass(slots=True)
class Peeked:
    """What the gateway knows of a body. ``members`` are the undecoded top-level values by name."""

    body: Buffer
    members: dict[str, Raw]
    model: str
    stream: bool = False
    include_usage: bool = False
    choices: int = 1
    _decoded: dict[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """The decoded value of a member, None if it is absent. Refuses a member that occurs twice (R-62)."""
        if name in self._decoded:
            return self._decoded[name]
        raw = self.members.get(name)
        if raw is None:
            return None
        refuse_repeats(self.body, self.members, (name,))
        try:
            decoded = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise wrong(name, f"The value of {name!r} cannot be read: {_reason(exc)}.") from exc
        self._decoded[name] = decoded
        return decoded


class DecodedMembers(Mapping[str, Any]):
    """A body's top-level members; a value is decoded when it is looked at and not before."""

    __slots__ = ("_peeked",)

    def __init__(self, peeked: Peeked) -> None:
        self._peeked = peeked

    def __getitem__(self, name: str) -> Any:
        if name not in self._peeked.members:
            raise KeyError(name)
        return self._peeked.value(name)

    def get(self, name: str, default: Any = None) -> Any:  # asked for often, and mostly in vain
        return self._peeked.value(name) if name in self._peeked.members else default

    def __contains__(self, name: object) -> bool:
        return name in self._peeked.members

    def __iter__(self) -> Iterator[str]:
        return iter(self._peeked.members)

    def __len__(self) -> int:
        return len(self._peeked.members)


def wrong(name: str, message: str) -> StokerError:
    """A 400 that names the member at fault."""
    return UsageError(ErrorCode.INVALID_PARAMETER, message, param=name, remedy=f"Correct {name!r} and send it again.")


def peek(body: Buffer) -> Peeked:
    """Read ``model``, ``stream`` and what goes with them; raises `StokerError` for a body no engine may see."""
    try:
        members = _DECODER.decode(body)
    except msgspec.ValidationError as exc:
        raise _invalid_json(body, "the body is not a JSON object", 0) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _invalid_json(body, _reason(exc), _offset(exc, body)) from exc
    except RecursionError as exc:
        raise _invalid_json(body, "it is nested too deeply", 0) from exc
    refuse_repeats(body, members, _READ)
    peeked = Peeked(body, members, _model(members.get("model")))
    raw = members.get("stream")
    if raw is not None:
        peeked.stream = _flag("stream", raw)
        if peeked.stream and "stream_options" in members:
            peeked.include_usage = _include_usage(peeked.value("stream_options"))
    if "n" in members:
        peeked.choices = _choices(peeked.value("n"))
    return peeked


def refuse_repeats(body: Buffer, members: Mapping[str, Raw], names: tuple[str, ...]) -> None:
    r"""400 ``duplicate-field`` if one of ``names`` is a top-level member twice, however it is spelled (R-62).

    A name whose quoted spelling stands once in a body without ``\u`` cannot be there twice; only other bodies are
    walked.
    """
    if isinstance(body, bytes) and b"\\u" not in body:
        for name in names:
            if name in members:
                quoted = _quoted(name)
                if body.find(quoted, body.find(quoted) + 1) >= 0:
                    break
        else:
            return
    seen: set[str] = set()
    for member in walk(body, members):
        if member.name in names:
            if member.name in seen:
                raise UsageError(
                    ErrorCode.DUPLICATE_FIELD,
                    f"The member {member.name!r} occurs twice in the body, the second time at byte {member.key_start}.",
                    param=member.name,
                    remedy=f"Send {member.name!r} once.",
                )
            seen.add(member.name)


def walk(body: Buffer, members: Mapping[str, Raw]) -> Iterator[Member]:
    """Every top-level member with its place, in order, repeated ones too. ``body`` must be proven JSON."""
    opened = _OPEN.match(body)
    position = opened.end() if opened else 0
    while key := _KEY.match(body, position):
        name = msgspec.json.decode(key.group(1), type=str)
        start = key.end()
        end, after = _value_end(body, start, members.get(name))
        yield Member(name, key.start(1), start, end)
        if after is None or after.group(1) == b"}":
            return
        position = after.end()


def splice(body: Buffer, members: Mapping[str, Raw], changes: Mapping[str, bytes | None]) -> list[Buffer]:
    """``body`` with ``changes`` made, as pieces to be sent one after the other (R-61).

    A value replaces a member's value or inserts the member before the closing brace; None takes it out with its comma.
    """
    refuse_repeats(body, members, tuple(changes))
    places = list(walk(body, members))
    cuts: list[tuple[int, int, bytes]] = []
    has_kept = False
    for number, place in enumerate(places):
        if place.name not in changes:
            has_kept = True
            continue
        value = changes[place.name]
        if value is not None:
            has_kept = True
            cuts.append((place.value_start, place.value_end, value))
        elif has_kept:
            cuts.append((places[number - 1].value_end, place.value_end, b""))
        else:
            last = number + 1 == len(places)
            cuts.append((place.key_start, place.value_end if last else places[number + 1].key_start, b""))
    present = {place.name for place in places}
    inserted = [
        msgspec.json.encode(name) + b":" + value
        for name, value in changes.items()
        if value is not None and name not in present
    ]
    if inserted:
        brace = _closing_brace(body)
        cuts.append((brace, brace, (b"," if has_kept else b"") + b",".join(inserted)))
    return _pieces(body, cuts)


def _pieces(body: Buffer, cuts: list[tuple[int, int, bytes]]) -> list[Buffer]:
    pieces: list[Buffer] = []
    position = 0
    for start, end, put in cuts:
        pieces += (body[position:start], put)
        position = end
    pieces.append(body[position:])
    return [piece for piece in pieces if len(piece)]


def _closing_brace(body: Buffer) -> int:
    position = len(body) - 1
    while body[position] != 0x7D:
        position -= 1
    return position


@lru_cache(256)
def _quoted(name: str) -> bytes:
    return b'"%b"' % name.encode()


def _value_end(body: Buffer, start: int, raw: Raw | None) -> tuple[int, re.Match[bytes] | None]:
    """The end of the value at ``start``. ``raw`` is the value msgspec kept under that name, usually this one."""
    if raw is not None:
        view = memoryview(raw)
        end = start + view.nbytes
        if body[start:end] == view and (after := _AFTER.match(body, end)):
            return end, after
    end = _skip(body, start)
    return end, _AFTER.match(body, end)


def _skip(body: Buffer, start: int) -> int:
    """The end of any valid JSON value, token by token: for repeated members, whose slices msgspec does not keep."""
    depth = 0
    for token in _TOKEN.finditer(body, start):
        first = token.group()[:1]
        depth += (first in b"[{") - (first in b"]}")
        if depth == 0:
            return token.end()
    return len(body)


def _model(raw: Raw | None) -> str:
    if raw is None:
        raise wrong("model", "The body names no model.")
    try:
        name = msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise wrong("model", "The value of 'model' is not a string.") from exc
    size = len(name.encode())
    if not 1 <= size <= MODEL_NAME_BYTES:
        raise wrong("model", f"The value of 'model' has {size} bytes; 1 to {MODEL_NAME_BYTES} are allowed.")
    return name


def _flag(name: str, raw: Raw) -> bool:
    text = bytes(raw)
    if text not in {b"true", b"false", b"null"}:
        raise wrong(name, f"The value of {name!r} is neither true nor false.")
    return text == b"true"


def _include_usage(options: Any) -> bool:
    if options is None:
        return False
    wanted = options.get("include_usage") if isinstance(options, dict) else options
    if wanted is not None and not isinstance(wanted, bool):
        raise wrong("stream_options", "The value of 'stream_options.include_usage' is neither true nor false.")
    return bool(wanted)


def _choices(value: Any) -> int:
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise wrong("n", "The value of 'n' is not a positive whole number.")
    return value


def _reason(exc: BaseException) -> str:
    return _OFFSET.sub("", str(exc)).removeprefix("JSON is malformed: ").strip()


def _offset(exc: BaseException, body: Buffer) -> int:
    found = _OFFSET.search(str(exc))
    return int(found.group(1)) if found else len(body)


def _invalid_json(body: Buffer, reason: str, offset: int) -> StokerError:
    return UsageError(
        ErrorCode.INVALID_JSON,
        f"The body of {len(body)} bytes cannot be read as JSON at byte {offset}: {reason}.",
        remedy="Send one JSON object in UTF-8 without a byte-order mark.",
        details={"offset": offset},
    )
