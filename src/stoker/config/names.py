"""Which names models and aliases may have, and that no name is used twice (R-92, C-20, C-22)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.config.files import File
from stoker.config.problems import ConfigProblem, dotted

_NAMED = ("models", "pools", "engines")


def name_problem(name: str) -> str | None:
    """Why ``name`` cannot be a model's name, as a clause; None if it can (R-92)."""
    size = len(name.encode(errors="surrogatepass"))
    if not 1 <= size <= 256:
        return f"it has {size} bytes, and 1 to 256 are allowed"
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in name):
        return "it holds a control character"
    if name.startswith("-"):
        return "it begins with -, like an option"
    if name != name.strip():
        return "it begins or ends with a space"
    for segment in name.split("/"):
        if segment in {"", ".", "..", "-"}:
            return f"it has the segment {segment!r} between slashes"
    return None


def name_problems(files: Sequence[File]) -> Iterator[ConfigProblem]:
    """Unusable names, names of two files, and aliases that are names or aliases already; over all files at once."""
    yield from _in_two_files(files)
    taken: dict[str, tuple[str, str]] = {}
    for file in files:
        for name in _tables(file, "models"):
            model = ("models", name)
            if why := name_problem(name):
                yield file.problem(f"{name!r} cannot be a model's name: {why}", model)
            taken.setdefault(name, (f"the model {dotted(model)}", file.origin(model)))
    for file in files:
        for name, table in _tables(file, "models").items():
            path = ("models", name, "aliases")
            for alias in _aliases(table):
                if why := name_problem(alias):
                    yield file.problem(f"{alias!r} cannot be an alias: {why}", path)
                if alias in taken:
                    whose, where = taken[alias]
                    yield file.problem(
                        f"the alias {alias!r} of {dotted(path[:2])} is {whose} already, at {where}", path
                    )
                taken.setdefault(alias, (f"an alias of {dotted(path[:2])}", file.origin(path)))


def _in_two_files(files: Sequence[File]) -> Iterator[ConfigProblem]:
    first: dict[tuple[str, str], File] = {}
    for file in files:
        for section in _NAMED:
            for name in _tables(file, section):
                path = (section, name)
                if path in first:
                    where = first[path].origin(path)
                    yield file.problem(f"{dotted(path)} is defined in two files; the other is {where}", path)
                else:
                    first[path] = file


def _tables(file: File, section: str) -> Mapping[str, Any]:
    found = file.values.get(section)
    return found if isinstance(found, Mapping) else {}


def _aliases(table: Any) -> list[str]:
    found = table.get("aliases") if isinstance(table, Mapping) else None
    return [alias for alias in found if isinstance(alias, str)] if isinstance(found, list) else []
