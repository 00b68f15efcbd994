"""Names in paths: what is a name, and what stands behind it (C-3, R-92).

A deployment's or model's name may hold slashes, colons, spaces and percent signs, plain or percent-encoded once. The
name ends at ``/-/``, which no name can hold. Routes never see those slashes: they get one segment, and the name apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from stoker.errors import ErrorCode, UsageError

_PREFIXES = ("/v1/deployments/", "/v1/models/")
_MARK = "/-/"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Target:
    """``path`` is what is routed. ``names``: what the name in it may mean, the decoded spelling first."""

    path: str
    names: tuple[str, ...] = ()


def read(raw: bytes) -> Target:
    """A raw request path, split. Raises `UsageError` ``malformed-request`` for one that is no text."""
    text = _text(raw)
    prefix = next((prefix for prefix in _PREFIXES if text.startswith(prefix)), None)
    if prefix is None:
        decoded = _decoded(text)
        prefix = next((prefix for prefix in _PREFIXES if decoded.startswith(prefix)), None)
        if prefix is None:
            return Target(decoded)
        text = quote(decoded)  # the prefix itself was encoded
    spelled, mark, verb = text.removeprefix(prefix).partition(_MARK)
    if not spelled:
        return Target(text)
    name = _decoded(spelled)
    names = (name,) if name == spelled else (name, spelled)
    return Target(f"{prefix}{quote(name, safe='')}{mark}{verb}", names)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _no_text() from None


def _decoded(text: str) -> str:
    """Percent-decoded once; a text in which a sign stands for itself is taken as it is."""
    if _BAD_ESCAPE.search(text):
        return text
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise _no_text() from None


def _no_text() -> UsageError:
    return UsageError(
        ErrorCode.MALFORMED_REQUEST, "The path is not UTF-8 text.", remedy="Encode names as UTF-8 in paths."
    )
