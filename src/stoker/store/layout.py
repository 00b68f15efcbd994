"""Which files of a folder are models: one entry a model, split sets as one (T-25, M-14). Reads names only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.store.split import parse_part

SUFFIX = ".gguf"
DEPTH = 4
MAX_FILES = 10_000

# Quantization tokens at the end of a file's stem (T-29).
_QUANT = re.compile(
    r"(?P<base>.+?)[.-](?P<label>(?:UD-)?(?:I?Q[1-8](?:_(?:[01]|K|XXS|XS|NL|S|M))(?:_(?:S|M|L|XL))?|F16|F32|BF16|MXFP4))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A model on disk by name: any existing file of it, and the stem people type."""

    path: str
    stem: str


def stem_of(path: str) -> str:
    """The short name of a file: without its ending and without the number of its part."""
    name = os.path.basename(path)
    part = parse_part(name)
    if part is not None:
        return part.stem
    return name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) else name


def split_label(stem: str) -> tuple[str, str] | None:
    """Base name and quantization label of a stem, if it ends in a known one."""
    match = _QUANT.fullmatch(stem)
    return (match["base"], match["label"]) if match else None


def find_models(folder: str) -> Iterator[Found]:
    """Every model below ``folder`` by name, at most 4 folders deep, links to folders not followed; in name order."""
    seen: set[tuple[str, str, int]] = set()
    count = 0
    for place, folders, names in os.walk(folder):
        depth = place[len(folder) :].count(os.sep)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < DEPTH else []
        for name in sorted(names):
            if not name.lower().endswith(SUFFIX) or name.startswith("."):
                continue
            count += 1
            if count > MAX_FILES:
                return
            part = parse_part(name)
            if part is not None:
                key = (place, part.stem, part.total)
                if key in seen:
                    continue
                seen.add(key)
            path = os.path.join(place, name)
            yield Found(path, stem_of(path))
