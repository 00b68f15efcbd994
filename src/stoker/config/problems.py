"""What is wrong with a configuration, in words a person can act on: one record a problem, all in one answer (C-22).

Turns what the validator says into sentences with file, line, path, value and range.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stoker.config import catalog
from stoker.config.catalog import Path
from stoker.errors import ErrorCode, UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TYPES = {
    "bool_type": "true or false", "int_type": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "string_type": "text in quotes", "tuple_type": "a list",
    "dict_type": "a table", "model_type": "a table", "mapping_type": "a table",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """``origin`` is where it was given: ``file:line``, ``env:NAME``, ``flag:--x`` or ``control``."""

    message: str
    origin: str
    key: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    nearest: str | None = None
    belongs_at: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}" if self.origin else self.message


def dotted(path: Sequence[object]) -> str:
    """``models."my model".port``: a path as TOML writes it."""
    parts = map(str, path)
    return ".".join(
        part if _BARE.fullmatch(part) else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"' for part in parts
    )


def invalid(problems: Sequence[ConfigProblem]) -> UsageError:
    """The one error for all problems of a configuration; the CLI exits 2 with it."""
    count = f"The configuration has {len(problems)} problems" if len(problems) > 1 else "The configuration is not valid"
    return UsageError(
        ErrorCode.INVALID_CONFIG,
        f"{count}: " + "; ".join(str(problem).removesuffix(".") for problem in problems[:20]) + ".",
        remedy="Correct what is named and run `stoker config check`.",
        details={"problems": [asdict(problem) for problem in problems]},
    )


def unknown_key(path: Path) -> tuple[str, str | None, tuple[str, ...]]:
    """Sentence, nearest valid key and the places where a key of that name belongs."""
    siblings = _siblings(path)
    name = path[-1]
    near = nearest(name, siblings)
    belongs = tuple(
        dict.fromkeys(
            (key.section or "the top level of the file")
            for key in catalog.keys().values()
            if key.path[-1] == name.replace("-", "_") and catalog.pattern(path)[:-1] != key.path[:-1]
        )
    )
    if not belongs and len(path) > 1 and (name,) in catalog.sections():
        belongs = (f"the top level of the file, as {catalog.section_text((name,))}",)
    sentence = f"{dotted(path)} is not a key of Stoker"
    if belongs:
        sentence += f"; {name.replace('-', '_')} belongs in {' or '.join(belongs[:4])}"
    if near is not None:
        sentence += f"; did you mean {near}?"
    return sentence, near, belongs


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name a person most likely meant; None if there is none close enough."""
    plain = name.replace("-", "_").lower()
    if plain in known:
        return plain
    begins = [each for each in known if each.startswith(plain) and len(plain) >= 4]
    found = difflib.get_close_matches(plain, known, n=1, cutoff=0.75)
    return found[0] if found else begins[0] if len(begins) == 1 else None


def _siblings(path: Path) -> list[str]:
    here = catalog.pattern(path)[:-1]
    found = [key[len(here)] for key in (*catalog.keys(), *catalog.sections()) if len(key) > len(here)
             and key[: len(here)] == here]  # fmt: skip
    return sorted({name for name in found if name != catalog.ANY})


def sentence_of(error: Mapping[str, Any], path: Path) -> str:
    """One validator error as a sentence with path, value and range."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    what = f"{dotted(path)} = {_shown(value, path)}"
    if kind in _TYPES:
        return f"{what} must be {_TYPES[kind]}"
    match kind:
        case "greater_than_equal" | "less_than_equal":
            return f"{what} is out of range: {_range(path, context)}"
        case "literal_error":
            return f"{what} must be one of {context['expected']}"
        case "finite_number":
            return f"{what} must be a finite number"
        case "string_too_short":
            return f"{what} must not be empty"
        case "value_error":
            return f"{dotted(path)}: {context['error'] if not _is_secret(path) else 'its value is not valid'}"
        case _:
            return f"{what}: {error['msg']}"


def _range(path: Path, context: Mapping[str, Any]) -> str:
    low, high = catalog.limits(path)
    unit = next((word for suffix, word in _UNITS.items() if path[-1].endswith(suffix)), "")
    low = context.get("ge", low)
    high = context.get("le", high)
    if low is not None and high is not None:
        return f"{low:g} to {high:g}{unit}" if isinstance(high, float) else f"{low} to {high}{unit}"
    return f"at least {low:g}{unit}" if low is not None else f"at most {high:g}{unit}"


_UNITS = {"_s": " seconds", "_bytes": " bytes", "_tokens": " tokens", "_days": " days"}


def _shown(value: Any, path: Path) -> str:
    if _is_secret(path):
        return "(a value that is not shown)"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_secret(path: Path) -> bool:
    """Values of environment tables are never repeated: they are where people put keys."""
    return "env" in catalog.pattern(path)[2:3] or "registries" in path[1:2]
