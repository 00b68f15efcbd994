"""What a client asks of Stoker itself, in ``Stoker-*`` header fields (R-4, R-48).

A bad value is refused, never ignored.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from stoker.errors import ErrorCode, StokerError, UsageError
from stoker.gateway.heads import Head

_DURATION = re.compile(
    r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_UNITS_S = (3600.0, 60.0, 1.0, 0.001)
_LABEL_BYTES = 64


@dataclass(frozen=True, slots=True)
class Wishes:
    max_wait_s: float | None = None
    keep_alive_s: float | None = None
    may_load: bool = True
    label: str = ""


_NONE = Wishes()


def read_wishes(head: Head) -> Wishes:
    if not head.stoker:
        return _NONE
    wait = _one(head, b"stoker-wait")
    keep = _one(head, b"stoker-keep-alive")
    load = _one(head, b"stoker-load")
    label = _one(head, b"stoker-client") or ""
    max_wait_s = None
    if wait is not None:
        max_wait_s = read_seconds(wait)
        if max_wait_s is None or max_wait_s < 0:
            raise _bad("Stoker-Wait", "a number of seconds of 0 or more")
    keep_alive_s = None
    if keep is not None:
        keep_alive_s = read_seconds(keep)
        if keep_alive_s is None:
            raise _bad("Stoker-Keep-Alive", "seconds or a duration such as 90s, 5m or 1h30m")
    if load not in {None, "never"}:
        raise _bad("Stoker-Load", "never")
    if len(label) > _LABEL_BYTES or not label.isprintable():
        raise _bad("Stoker-Client", f"at most {_LABEL_BYTES} printable characters")
    return Wishes(max_wait_s, keep_alive_s, load is None, label)


def read_seconds(text: str) -> float | None:
    """Seconds from a plain number or from parts with h, m, s and ms; None if it is neither."""
    if _NUMBER.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    sign, bare = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
    found = _DURATION.fullmatch(bare)
    if found is None or not any(found.groups()):
        return None
    return sign * sum(float(part) * unit_s for part, unit_s in zip(found.groups(), _UNITS_S, strict=True) if part)


def _one(head: Head, name: bytes) -> str | None:
    values = head.stoker.get(name)
    if not values:
        return None
    if len(values) > 1:
        raise _bad(name.decode().title(), "one value")
    return values[0].decode("latin-1").strip()


def _bad(name: str, wanted: str) -> StokerError:
    return UsageError(
        ErrorCode.INVALID_PARAMETER,
        f"The header {name} has a value that cannot be read; it takes {wanted}.",
        param=name,
        remedy=f"Correct {name}, or leave it out.",
    )
