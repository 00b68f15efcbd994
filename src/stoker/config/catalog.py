"""The keys of the schema as a table: path, kind of value, effect, default. ``*`` stands for a name the user chose.

Read from the models themselves, so that nothing about a key is said twice.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stoker.config.schema import Effect, Settings

Path = tuple[str, ...]

ANY = "*"


@dataclass(frozen=True, slots=True)
class Key:
    """``kind``: flag, whole, number, quantity, text, list or table. A table is free: what stands in it is not checked
    here. ``choices`` is not empty for closed sets.
    """

    path: Path
    kind: str
    effect: Effect
    default: Any
    choices: tuple[str, ...] = ()
    lowest: float | None = None
    highest: float | None = None

    @property
    def section(self) -> str:
        """As it is written in a file: ``[models."NAME"]``; empty for the top level."""
        return section_text(self.path[:-1])


def section_text(path: Path) -> str:
    """``[gateway]``, ``[models."NAME"]``, ``[engines.ID]``: how a file names the table at ``path``."""
    placeholder = {"models": '"NAME"', "pools": '"ID"', "engines": "ID"}
    return f"[{'.'.join(placeholder.get(path[0], part) if part == ANY else part for part in path)}]" if path else ""


@cache
def keys() -> dict[Path, Key]:
    """Every key of the schema by its path."""
    return {key.path: key for key in _walk(Settings, ())}


@cache
def sections() -> frozenset[Path]:
    """Every table that holds keys, and the tables of named ones (``models``)."""
    found = {key.path[:end] for key in keys().values() for end in range(1, len(key.path))}
    return frozenset(found)


def find(path: Path) -> Key | None:
    """The key ``path`` is of: itself, or the free table it stands in."""
    for end in range(len(path), 0, -1):
        key = keys().get(pattern(path[:end]))
        if key is not None and (end == len(path) or key.kind == "table"):
            return key
    return None


def limits(path: Path) -> tuple[float | None, float | None]:
    """Lowest and highest value of the key at ``path``; None where there is no bound."""
    key = find(path)
    return (key.lowest, key.highest) if key else (None, None)


def pattern(path: Path) -> Path:
    """``path`` with names the user chose replaced by ``*``."""
    if len(path) > 1 and path[0] in {"models", "pools", "engines"}:
        return (path[0], ANY, *path[2:])
    return path


def _walk(model: type[BaseModel], here: Path) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        path = (*here, info.alias or name)
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, path)
        elif _is_named_tables(annotation):
            yield from _walk(typing.get_args(annotation)[1], (*path, ANY))
        else:
            yield _key(path, info)


def _is_named_tables(annotation: Any) -> bool:
    values = typing.get_args(annotation)
    return typing.get_origin(annotation) is dict and isinstance(values[1], type) and issubclass(values[1], BaseModel)


def _key(path: Path, info: FieldInfo) -> Key:
    effects = [mark for mark in info.metadata if isinstance(mark, Effect)]
    if len(effects) != 1:
        raise AssertionError(f"{'.'.join(path)} needs one effect letter, not {len(effects)}")
    kind, choices = _kind(path, info.annotation)
    marks = [*info.metadata, *_inner_marks(info.annotation)]
    lowest = next((mark.ge for mark in marks if hasattr(mark, "ge")), None)
    highest = next((mark.le for mark in marks if hasattr(mark, "le")), None)
    return Key(path, kind, effects[0], info.default, choices, lowest, highest)


def _inner_marks(annotation: Any) -> Iterator[Any]:
    """Bounds of a key that may be left out stand inside its type."""
    for inner in typing.get_args(annotation):
        for mark in getattr(inner, "__metadata__", ()):
            yield from mark.metadata if isinstance(mark, FieldInfo) else (mark,)


def _kind(path: Path, annotation: Any) -> tuple[str, tuple[str, ...]]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(path, arguments[0])
    if origin in {typing.Union, types.UnionType}:
        return _kind(path, arguments[0])
    if origin is typing.Literal:
        return "text", arguments
    if origin is tuple:
        return "list", _kind(path, arguments[0])[1]
    if origin is dict:
        return "table", ()
    if path[-1].endswith(("_s", "_bytes")) or path[-2:-1] == ("drain_s",):
        return "quantity", ()
    return {bool: "flag", int: "whole", float: "number", str: "text"}[annotation], ()
