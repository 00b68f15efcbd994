"""Where each effective value comes from, and what a change of configuration would do (C-24, C-26)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.config import catalog
from stoker.config.catalog import Path
from stoker.config.problems import dotted
from stoker.config.schema import Settings

DEFAULT = "default"

Show = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One key that differs. ``effect``: L, N, D or R. ``subjects``: the models, pools or engines it is about."""

    key: str
    old: Any
    new: Any
    origin: str
    effect: str
    subjects: tuple[str, ...] = ()


def merge(into: dict[str, Any], values: Mapping[str, Any], note: Callable[[Path], None], here: Path = ()) -> None:
    """Lay a stronger layer over ``into``: tables key by key, everything else whole. ``note`` is told each key given."""
    for name, value in values.items():
        path = (*here, name)
        if isinstance(value, Mapping):
            if not isinstance(into.get(name), dict):
                into[name] = {}
            if not value:
                note(path)
            merge(into[name], value, note, path)
        else:
            into[name] = value
            note(path)


def flatten(settings: Settings) -> dict[Path, Any]:
    """Every key with its value; the keys of free tables one by one, empty ones as they are."""
    return dict(_flat(settings.model_dump(by_alias=True), ()))


def _flat(values: Mapping[str, Any], here: Path) -> Iterator[tuple[Path, Any]]:
    for name, value in values.items():
        path = (*here, name)
        key = catalog.find(path)
        is_free = key is not None and key.kind == "table"
        if isinstance(value, Mapping) and (value or not is_free):
            yield from _flat(value, path)
        else:
            yield path, value


def origin_of(origins: Mapping[Path, str], path: Path) -> str:
    """The origin of the value at ``path``: its own, else that of the same key in ``defaults``, else ``default``."""
    for end in range(len(path), 0, -1):
        if path[:end] in origins:
            return origins[path[:end]]
    if path[0] == "models" and len(path) > 2:
        return origin_of(origins, ("defaults", *path[2:]))
    return DEFAULT


def shown(settings: Settings, origins: Mapping[Path, str], show: Show) -> list[tuple[str, Any, str]]:
    """(key, value, origin) of every key, for people and `GET /config`; ``show`` hides secrets by name."""
    return [
        (dotted(path), show(path[-1], value), origin_of(origins, path)) for path, value in flatten(settings).items()
    ]


def changes(
    old: Settings, new: Settings, origins: Mapping[Path, str], show: Show = lambda _, value: value
) -> tuple[Change, ...]:
    """What differs, in the order of the schema. Spelling and order in the files make no difference."""
    before, after = flatten(old), flatten(new)
    found = []
    for path in [*after, *(path for path in before if path not in after)]:
        key = catalog.find(path)
        if before.get(path) == after.get(path) or key is None:
            continue
        subjects = (path[1],) if catalog.pattern(path) != path else ()
        found.append(
            Change(
                dotted(path),
                show(path[-1], before.get(path)),
                show(path[-1], after.get(path)),
                origin_of(origins, path),
                key.effect.value,
                subjects,
            )
        )
    return tuple(found)
