"""Reading the files of a configuration: encodings by name, TOML, positions (C-21, C-22).

A file that cannot be read is a problem with its place; it never counts as empty.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.config.positions import Path, line_of, positions, twice
from stoker.config.problems import ConfigProblem, dotted

# Longest first: the mark of UTF-16 LE is the beginning of that of UTF-32 LE.
_MARKS = ((b"\xff\xfe\x00\x00", "UTF-32 LE"), (b"\x00\x00\xfe\xff", "UTF-32 BE"), (b"\xff\xfe", "UTF-16 LE"),
          (b"\xfe\xff", "UTF-16 BE"))  # fmt: skip
_UTF8_MARK = b"\xef\xbb\xbf"
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class File:
    """One file as read. ``values`` is empty when there are ``problems``."""

    path: str
    values: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[Path, list[int]] = field(default_factory=dict)
    problems: tuple[ConfigProblem, ...] = ()

    def origin(self, path: Path) -> str:
        line = line_of(dict(self.lines), path)
        return f"{self.path}:{line}" if line else self.path

    def problem(self, message: str, path: Path = (), **more: Any) -> ConfigProblem:
        line = line_of(dict(self.lines), path)
        return ConfigProblem(message, self.origin(path), dotted(path), self.path, line, **more)


def read_file(path: str) -> File:
    """Read and parse ``path``. What is wrong with it is in ``problems``; nothing is raised."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as exc:
        return File(path, problems=(ConfigProblem(f"it cannot be read: {exc.strerror}", path, file=path),))
    return parse_file(path, raw)


def parse_file(path: str, raw: bytes) -> File:
    body = raw.removeprefix(_UTF8_MARK)
    wrong = _wrong_encoding(path, body)
    if wrong is not None:
        return File(path, problems=(wrong,))
    text = body.decode()
    lines = positions(text)
    try:
        return File(path, tomllib.loads(text), lines)
    except tomllib.TOMLDecodeError as exc:
        return File(path, lines=lines, problems=tuple(_syntax(path, text, lines, exc)))


def folder_files(folder: str) -> list[str]:
    """The ``*.toml`` files of ``folder`` in name order, hidden ones left out; empty when there is no such folder.

    Raises `OSError` if the folder is there and cannot be listed.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(".toml") and name[0] != "."]


def _wrong_encoding(path: str, body: bytes) -> ConfigProblem | None:
    for mark, name in _MARKS:
        if body.startswith(mark):
            return _at_byte(path, body, 0, f"it is written in {name}; save it as UTF-8")
    if (at := body.find(b"\x00")) >= 0:
        even, odd = body[::2].count(0), body[1::2].count(0)
        guess = "UTF-16 BE" if even > len(body) // 4 else "UTF-16 LE" if odd > len(body) // 4 else ""
        said = f"it looks like {guess} without a mark; save it as UTF-8" if guess else "it holds a NUL byte"
        return _at_byte(path, body, at, said)
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        return _at_byte(
            path, body, exc.start, f"byte 0x{body[exc.start]:02x} is not valid UTF-8; save the file as UTF-8"
        )
    if (at := text.find("\ufeff")) >= 0:
        return _at_byte(path, body, len(text[:at].encode()), "a byte-order mark stands in the middle of the file")
    return None


def _at_byte(path: str, body: bytes, at: int, message: str) -> ConfigProblem:
    line = body.count(b"\n", 0, at) + 1
    column = at - (body.rfind(b"\n", 0, at) + 1) + 1
    return ConfigProblem(
        f"{message} (line {line}, byte {at + 1})", f"{path}:{line}", file=path, line=line, column=column
    )


def _syntax(path: str, text: str, lines: dict[Path, list[int]], exc: tomllib.TOMLDecodeError) -> list[ConfigProblem]:
    match = _AT.search(str(exc))
    said = str(exc)[: match.start()] if match else str(exc)
    line = int(match[1]) if match and match[1] else text.count("\n") + 1
    column = int(match[2]) if match and match[2] else None
    doubles = [
        ConfigProblem(f"{dotted(key)} is given twice, on lines {first} and {second}", f"{path}:{second}", dotted(key),
                      path, second)
        for key, first, second in twice(lines)
    ]  # fmt: skip
    if doubles and ("overwrite" in said or "twice" in said or "duplicate" in said.lower()):
        return doubles
    return [ConfigProblem(f"it is not valid TOML: {said}", f"{path}:{line}", "", path, line, column), *doubles]
