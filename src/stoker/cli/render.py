"""How things look to people: tables, sizes, times, states. Pure text in, text out; the clock is the caller's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

import click

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STATE_COLOURS = {
    "ready": "green", "loading": "yellow", "earmarked": "yellow", "draining": "yellow", "held": "red",
    "removing": "yellow", "cold": None, "reserved": "yellow", "preparing": "yellow", "starting": "yellow",
    "initializing": "yellow", "stopping": "yellow", "stop-unconfirmed": "red", "gone": None,
}  # fmt: skip
NOTHING = "-"


def size(count: float | None) -> str:
    """Bytes with the unit that keeps the number short: 512 B, 97.6 MiB, 4.2 GiB."""
    if count is None:
        return NOTHING
    value, unit = float(count), 0
    while abs(value) >= 1023.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or abs(value) >= 99.95 else f"{value:.1f} {_UNITS[unit]}"


def duration(seconds: float | None) -> str:
    """The largest whole unit: 850 ms, 4.2 s, 42 s, 4 min, 3 h, 2 d."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def ago(moment: float | None, now: float) -> str:
    if moment is None:
        return NOTHING
    return "just now" if now - moment < 5 else f"{duration(now - moment)} ago"


def until(moment: float | None, now: float) -> str:
    if moment is None:
        return NOTHING
    return "now" if moment - now < 1 else f"in {duration(moment - now)}"


def clock(moment: float | None) -> str:
    """Local time of day with milliseconds."""
    return NOTHING if moment is None else datetime.fromtimestamp(moment).astimezone().strftime("%H:%M:%S.%f")[:-3]


def count(number: int | None) -> str:
    """Thousands apart: 131 072."""
    return NOTHING if number is None else f"{number:,}".replace(",", " ")


def state(word: str) -> str:
    colour = _STATE_COLOURS.get(word.partition(" ")[0])
    return click.style(word, fg=colour) if colour else word or NOTHING


def by_pool(amounts: Mapping[str, int]) -> str:
    """4.2 GiB gpu-0 + 310 MiB ram"""
    return " + ".join(f"{size(amount)} {pool}" for pool, amount in amounts.items() if amount) or NOTHING


def bar(part: float, whole: float, width: int = 24) -> str:
    """How full something is. Anything at all shows, and only what is full looks full."""
    if whole <= 0:
        return "░" * width
    share = min(1.0, max(0.0, part / whole))
    filled = round(share * width)
    filled = max(filled, 1 if share > 0 else 0)
    filled = min(filled, width if share >= 1 else width - 1)
    return "█" * filled + "░" * (width - filled)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[str] = frozenset()) -> str:
    """Columns two spaces apart, as wide as they need; ``right`` names the heads of columns of numbers."""
    shown = [heads, *rows]
    widths = [max(_width(row[column]) for row in shown) for column in range(len(heads))]
    lines = []
    for row in shown:
        cells = []
        for head, cell, width in zip(heads, row, widths, strict=True):
            gap = " " * (width - _width(cell))
            cells.append(gap + cell if head in right else cell + gap)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names on the left, values on the right; a value of several lines keeps its column."""
    width = max((len(name) for name, _ in pairs), default=0)
    indent = "\n" + " " * (width + 2)
    return "\n".join(f"{name:<{width}}  {value}".rstrip().replace("\n", indent) for name, value in pairs)


def _width(text: str) -> int:
    return len(_ANSI.sub("", text))
