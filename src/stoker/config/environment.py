"""Values from the environment: ``STOKER_SECTION__KEY`` and what is written in it (C-20, C-23).

Two underscores part the levels. Set but empty is not set. Text becomes what the key wants, never more: a boolean is
``true`` or ``false``, a list is parted by commas, a number is a number. Other programs' variables mean nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.config import catalog
from stoker.config.catalog import Path
from stoker.config.problems import ConfigProblem, dotted, unknown_key

PREFIX = "STOKER_"

_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass
class Environment:
    """``values`` nested as in a file; ``names`` says which variable gave each path."""

    values: dict[str, Any] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)


def read_environment(environ: Mapping[str, str], known: Mapping[str, Any]) -> Environment:
    """``known`` is what weaker sources say: names of models, pools and engines are matched against it, because a
    variable cannot spell them all.
    """
    found = Environment()
    for name, raw in sorted(environ.items()):
        text = raw.strip()
        if not name.startswith(PREFIX) or not text:
            continue
        if "__" not in name:
            found.problems.extend(_nearly(name))
            continue
        path = _path(name, known)
        key = catalog.find(path)
        if key is None:
            sentence, near, belongs = unknown_key(path)
            found.problems.append(
                ConfigProblem(sentence, f"env:{name}", dotted(path), nearest=near, belongs_at=belongs)
            )
            continue
        if key.kind == "table" and len(path) == len(key.path):
            message = f"{dotted(path)} is a table; name one of its keys, as in {name}__KEY"
            found.problems.append(ConfigProblem(message, f"env:{name}", dotted(path)))
            continue
        _put(found.values, path, _value(text, key.kind, path))
        found.names[path] = name
    return found


def _path(name: str, known: Mapping[str, Any]) -> Path:
    written = name.removeprefix(PREFIX).split("__")
    path = [part.lower() for part in written]
    if len(path) > 1 and path[0] in {"models", "pools", "engines"}:
        path[1] = _name(path[1], known.get(path[0], {}), path[0])
        if path[2:3] == ["env"] and len(path) > 3:
            path[3:] = ["__".join(written[3:])]  # a variable's name keeps its letters
    return tuple(path)


def _name(folded: str, known: Mapping[str, Any], section: str) -> str:
    """The name that reads ``folded`` when all but letters and digits are underscores."""
    matches = [name for name in known if re.sub(r"[^a-z0-9]", "_", name.lower()) == folded]
    if len(matches) == 1:
        return matches[0]
    return folded.replace("_", "-") if section == "engines" else folded


def _value(text: str, kind: str, path: Path) -> Any:
    match kind:
        case "list":
            return [part.strip() for part in text.split(",") if part.strip()]
        case "flag" if text in {"true", "false"}:
            return text == "true"
        case "whole" | "number" | "quantity":
            return _number(text)
        case "table" if not {"env", "labels", "registries"} & set(path[1:3]):
            return {"true": True, "false": False}.get(text, _number(text))
        case _:
            return text  # if that is not what the key wants, the validator says so


def _number(text: str) -> Any:
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _put(values: dict[str, Any], path: Path, value: Any) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
    values[path[-1]] = value


def _nearly(name: str) -> Iterator[ConfigProblem]:
    """A variable with one underscore where two are meant is a mistake, not another program's."""
    plain = name.removeprefix(PREFIX).lower()
    for key in catalog.keys().values():
        if len(key.path) > 1 and "_".join(key.path) == plain:
            meant = PREFIX + "__".join(part.upper() for part in key.path)
            yield ConfigProblem(
                f"{name} is not a variable of Stoker; did you mean {meant}?", f"env:{name}", nearest=meant
            )
