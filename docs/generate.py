"""Writes the generated parts of the design pages: ``python docs/generate.py``; ``--check`` exits 1 if one is stale.

A page holds a block between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``. The words around it are written by
hand; what is inside comes from the tables of the code and is replaced whole.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.domain.lifecycle import LEGAL
from stoker.domain.lifecycle_fits import FITS, MAY_HAVE_UNIT
from stoker.domain.reconcile import RULES
from stoker.domain.session import Command, Phase

DESIGN = Path(__file__).parent / "design"
_BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end: (?P=name) -->)", re.DOTALL)

# Where a life enters (S-5), and what new work each phase takes.
ENTRIES = {Phase.RESERVED: "load", Phase.INITIALIZING: "adopted", Phase.STOP_UNCONFIRMED: "leftover"}
GRANTS = {Phase.READY: "yes", Phase.DRAINING: "none new"}


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(words: Sequence[str]) -> str:
    return " ".join(f"`{word}`" for word in words) or "none"


def node(phase: Phase) -> str:
    return phase.replace("-", "_")


def phase_diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{phase}" as {node(phase)}' for phase in Phase if node(phase) != phase]
    lines += [f"    [*] --> {node(phase)}: {how}" for phase, how in ENTRIES.items()]
    lines += [f"    {node(phase)} --> {node(after)}" for phase in Phase for after in Phase if after in LEGAL[phase]]
    lines += [f"    {node(phase)} --> [*]" for phase in Phase if not LEGAL[phase]]
    return "\n".join([*lines, "```", ""])


def phase_table() -> str:
    rows = [
        (
            f"`{phase}`",
            "yes" if phase in MAY_HAVE_UNIT else "no",
            "no" if phase is Phase.GONE else "in full",
            GRANTS.get(phase, "no"),
            code([after for after in Phase if after in LEGAL[phase]]),
        )
        for phase in Phase
    ]
    return table(("phase", "unit may exist", "reservation", "grants", "may become"), rows)


def input_table() -> str:
    rows = [
        (
            f"`{kind.__name__}`",
            "refused" if issubclass(kind, Command) else "dropped",
            code([phase for phase in Phase if phase in phases]),
        )
        for kind, phases in FITS.items()
    ]
    return table(("input", "elsewhere", "means something in"), rows)


def reconcile_table() -> str:
    rows = [
        (
            rule.rule,
            rule.finding,
            f"**{rule.action}**" + (", and **forget** the row" if rule.also_forget_row else ""),
        )
        for rule in RULES
    ]
    return table(("#", "row and finding", "verdict"), rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "phase-diagram": phase_diagram,
    "phase-table": phase_table,
    "input-table": input_table,
    "reconcile-table": reconcile_table,
}


def generated(text: str) -> str:
    """The page with every block made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found['name']]()}\n{found[3]}", text)


def main(arguments: list[str]) -> int:
    stale = []
    for page in sorted(DESIGN.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        made = generated(text)
        if made == text:
            continue
        stale.append(page)
        if "--check" not in arguments:
            page.write_text(made, encoding="utf-8")
    word = "stale" if "--check" in arguments else "written"
    for page in stale:
        print(f"{page}: {word}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
