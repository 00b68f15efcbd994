"""Which paths there are, and nothing else is reachable (R-2, R-51).

A target is decoded once; only that form is compared. Two targets that look alike but are not spelled the same never
mean the same route.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MODELS = "/v1/models"


class RouteKind(StrEnum):
    """Who answers a path."""

    WORK = "work"
    ROOT = "root"
    LIVE = "live"
    READY = "ready"
    METRICS = "metrics"
    MODELS = "models"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class PublicRoute:
    """``names``: the spellings of the name in the path, the decoded one first."""

    kind: RouteKind
    path: str
    methods: tuple[str, ...]
    names: tuple[str, ...] = ()


_READ = ("GET", "HEAD")
_TABLE = {
    b"/": PublicRoute(RouteKind.ROOT, "/", _READ),
    b"/livez": PublicRoute(RouteKind.LIVE, "/livez", _READ),
    b"/readyz": PublicRoute(RouteKind.READY, "/readyz", _READ),
    b"/metrics": PublicRoute(RouteKind.METRICS, "/metrics", _READ),
    b"/v1/models": PublicRoute(RouteKind.MODELS, MODELS, _READ),
    b"/v1/chat/completions": PublicRoute(RouteKind.WORK, "/v1/chat/completions", ("POST",)),
    b"/v1/completions": PublicRoute(RouteKind.WORK, "/v1/completions", ("POST",)),
    b"/v1/embeddings": PublicRoute(RouteKind.WORK, "/v1/embeddings", ("POST",)),
}

WORK_ROUTES = {target: route for target, route in _TABLE.items() if route.kind is RouteKind.WORK}


def find_route(target: bytes) -> PublicRoute | None:
    """The route of a raw request target, None if no path is spelled like that."""
    known = _TABLE.get(target)
    if known is not None:
        return known
    raw = _path(target)
    if raw is None or _BAD_ESCAPE.search(raw):
        return _named(raw, None) if raw is not None else None
    decoded_bytes = unquote_to_bytes(raw)
    try:
        decoded = decoded_bytes.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if _CONTROL.search(decoded):
        return None
    if decoded != "/" and any(segment in {"", ".", ".."} for segment in decoded[1:].split("/")):
        return None
    return _TABLE.get(decoded_bytes) or _named(raw, decoded)


def _path(target: bytes) -> bytes | None:
    """The path of an origin-form or absolute target, without its query."""
    if not target.startswith(b"/"):
        scheme, found, rest = target.partition(b"://")
        if not found or scheme.lower() not in {b"http", b"https"}:
            return None
        slash = rest.find(b"/")
        target = rest[slash:] if slash >= 0 else b"/"
    return target.partition(b"?")[0]


def _named(raw: bytes, decoded: str | None) -> PublicRoute | None:
    """``/v1/models/{name}``: a name may hold slashes, plain or encoded; one with ``%`` may stand as it is (R-92)."""
    prefix = MODELS + "/"
    names: list[str] = []
    if decoded is not None and decoded.startswith(prefix):
        names.append(decoded.removeprefix(prefix))
    if raw.startswith(prefix.encode()) and b"%" in raw and raw.isascii() and not _CONTROL.search(raw.decode("ascii")):
        names.append(raw.decode("ascii").removeprefix(prefix))
    return PublicRoute(RouteKind.MODEL, MODELS + "/{name}", _READ, tuple(names)) if names else None
