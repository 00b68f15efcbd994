"""Which line of a log says why an engine ended (E-44 to E-49).

The class decides first, then the first line of it (things that happen once) or the last (things that repeat). Lines
that only look like a cause never count. Numbers come from one line. It knows neither engines nor sentences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.engines.patterns import FIRST_COUNTS, Pattern, compiled

EXCERPT_LINES, LINE_CHARS, WORD_CHARS = 8, 500, 120
_UNITS = {"_mib": 1 << 20, "_gib": 1 << 30, "_kib": 1 << 10}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_TIMES = re.compile(r"\d[\d.:]*")
_GROUP_NAME = re.compile(r"\(\?P<\w+>")


@dataclass(frozen=True, slots=True)
class Finding:
    """The deciding line, the pattern it matched, and the words of that pattern's named groups."""

    pattern: Pattern
    line: str
    words: Mapping[str, str] = field(default_factory=dict)


class Table:
    """Patterns joined for reading long logs: one search decides that a line is of no interest."""

    __slots__ = ("_joined", "patterns")

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = tuple(sorted(patterns, key=lambda item: item.rank))
        plain = (_GROUP_NAME.sub("(?:", item.text) for item in self.patterns)
        self._joined = "|".join(f"(?:{text})" for text in plain)

    def find(self, lines: Sequence[str], may_decide: Callable[[str], bool]) -> Finding | None:
        """The finding that decides, or None. ``may_decide`` rules out decoys and lines that only inform."""
        best: Finding | None = None
        for line in lines:
            if not self.concerns(line) or not may_decide(line):
                continue
            for item in self.patterns:
                if best is not None and (
                    item.rank > best.pattern.rank or (item.rank == best.pattern.rank and item.rank in FIRST_COUNTS)
                ):
                    break
                if match := item.regex.search(line):
                    best = Finding(item, line, _words(match))
                    break
        return best

    def concerns(self, line: str) -> bool:
        return compiled(self._joined).search(line) is not None


def numbers_of(lines: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> dict[str, int]:
    """Amounts in bytes from the last line that holds all groups of a pattern, else the most (E-48)."""
    for regex in patterns:
        best: dict[str, int] = {}
        for line in reversed(lines):
            match = regex.search(line)
            found = _amounts(match) if match else {}
            if len(found) == regex.groups:
                return found
            if len(found) > len(best):
                best = found
        if best:
            return best
    return {}


def excerpt(lines: Sequence[str], is_of_interest: Callable[[str], bool]) -> tuple[str, ...]:
    """At most eight lines worth reading, each once whatever its time stamp (E-49)."""
    chosen: dict[str, str] = {}
    for line in lines:
        if is_of_interest(line):
            shown = short(line)
            chosen.setdefault(_TIMES.sub("#", shown), shown)
            if len(chosen) == EXCERPT_LINES:
                break
    return tuple(chosen.values())


def short(line: str, limit: int = LINE_CHARS) -> str:
    text = _CONTROL.sub(" ", line).strip()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _words(match: re.Match[str]) -> dict[str, str]:
    return {
        name: short(text, WORD_CHARS)
        for name, text in match.groupdict().items()
        if text is not None and name[-4:] not in _UNITS
    }


def _amounts(match: re.Match[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, text in match.groupdict().items():
        unit = _UNITS.get(name[-4:])
        try:
            amount = float(text) * (unit or 1) if text is not None else -1.0
        except ValueError:
            continue
        if 0 <= amount < 1 << 62:
            found[name if unit is None else f"{name[:-4]}_bytes"] = int(amount)
    return found
