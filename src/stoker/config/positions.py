"""Where each key of a TOML text stands: lines for messages and origins, without a parser that keeps them.

The values come from the standard library's parser. This scan only has to agree with it on texts that parser accepts;
on others it must not fail, and still finds keys that are given twice.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

Path = tuple[str, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_GAP = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}' + r"|'''(?:[^']|'(?!''))*'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]*")


def positions(text: str) -> dict[Path, list[int]]:
    """Lines (from 1) on which each key or table is given, in order. More than one line: given more than once."""
    return _Scan(text).run()


def line_of(found: dict[Path, list[int]], path: Path) -> int | None:
    """The line of ``path``, or of the nearest thing around it that stands in the text."""
    for end in range(len(path), 0, -1):
        lines = found.get(path[:end]) or [
            line for key, lines in found.items() if key[:end] == path[:end] for line in lines
        ]
        if lines:
            return lines[0]
    return None


def twice(found: dict[Path, list[int]]) -> Iterator[tuple[Path, int, int]]:
    """Keys and tables that are given twice, with both lines."""
    for path, lines in found.items():
        if len(lines) > 1:
            yield path, lines[0], lines[1]


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.table: Path = ()
        self.found: dict[Path, list[int]] = {}

    def run(self) -> dict[Path, list[int]]:
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return self.found
            before = self.at
            self._statement()
            self.at = max(self.at, before + 1)

    def _statement(self) -> None:
        line = self._line()
        if self.text.startswith("[[", self.at):
            self.at += 2
            self.table = self._key()  # an array of tables may come again
            self.found.setdefault(self.table, [line])
            self._rest_of_line()
        elif self.text.startswith("[", self.at):
            self.at += 1
            self.table = self._key()
            self._note(self.table, line)
            self._rest_of_line()
        else:
            self._pair(self.table)

    def _pair(self, table: Path) -> None:
        line = self._line()
        key = self._key()
        self._skip(_GAP)
        if not key or not self.text.startswith("=", self.at):
            self._rest_of_line()
            return
        self.at += 1
        self._note(table + key, line)
        self._value(table + key)

    def _value(self, path: Path) -> None:
        self._skip(_GAP)
        if match := _STRING.match(self.text, self.at):
            self.at = match.end()
        elif self.text.startswith("[", self.at):
            self._list()
        elif self.text.startswith("{", self.at):
            self._inline(path)
        else:
            self._skip(_SCALAR)

    def _list(self) -> None:
        self.at += 1
        while self.at < len(self.text):
            self._skip(_BLANK)
            if self.text.startswith("]", self.at):
                self.at += 1
                return
            before = self.at
            kept, self.found = self.found, {}  # what stands in a list has no path of its own
            self._value(())
            self.found = kept
            self._skip(_BLANK)
            if self.text.startswith(",", self.at):
                self.at += 1
            elif self.at == before:
                return

    def _inline(self, path: Path) -> None:
        self.at += 1
        while self.at < len(self.text):
            self._skip(_BLANK)
            if self.text.startswith("}", self.at):
                self.at += 1
                return
            before = self.at
            self._pair(path)
            self._skip(_BLANK)
            if self.text.startswith(",", self.at):
                self.at += 1
            elif self.at == before:
                return

    def _key(self) -> Path:
        parts: list[str] = []
        while True:
            self._skip(_GAP)
            if match := _BARE.match(self.text, self.at):
                parts.append(match[0])
            elif match := _STRING.match(self.text, self.at):
                parts.append(_unquoted(match[0]))
            else:
                return tuple(parts)
            self.at = match.end()
            self._skip(_GAP)
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _note(self, path: Path, line: int) -> None:
        self.found.setdefault(path, []).append(line)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _rest_of_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1


def _unquoted(quoted: str) -> str:
    try:
        value = tomllib.loads(f"k = {quoted}")["k"]
    except tomllib.TOMLDecodeError:
        return quoted
    return value if isinstance(value, str) else quoted
