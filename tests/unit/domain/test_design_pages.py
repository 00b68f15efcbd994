"""The diagram and the tables of the design pages equal the tables of the code (sessions, acceptance 1 and 46)."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.domain.lifecycle import LEGAL
from stoker.domain.reconcile import RULES

DOCS = Path(__file__).parents[3] / "docs"
PROGRAM = DOCS / "generate.py"
GENERATE = runpy.run_path(str(PROGRAM))


def test_no_generated_block_is_stale():
    checked = subprocess.run([sys.executable, str(PROGRAM), "--check"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_every_block_stands_on_exactly_one_page():
    pages = "".join(page.read_text() for page in (DOCS / "design").glob("*.md"))
    for name in GENERATE["BLOCKS"]:
        assert pages.count(f"<!-- generated: {name} -->") == 1, name
        assert pages.count(f"<!-- end: {name} -->") == 1, name


@pytest.mark.parametrize("page", ["lifecycle.md", "reconcile.md"])
def test_a_changed_block_is_found_and_mended_and_the_words_around_it_are_kept(page):
    text = (DOCS / "design" / page).read_text()
    spoilt = re.sub(r"(<!-- generated: [\w-]+ -->\n).*?(<!-- end)", r"\1old\n\2", text, flags=re.DOTALL)
    assert spoilt != text
    assert GENERATE["generated"](spoilt) == text


def test_check_exits_1_and_changes_nothing_when_a_page_is_stale(tmp_path, capsys):
    page = tmp_path / "lifecycle.md"
    page.write_text("<!-- generated: phase-table -->\nold\n<!-- end: phase-table -->\n")
    main = GENERATE["main"]
    main.__globals__["DESIGN"] = tmp_path
    try:
        assert main(["--check"]) == 1
        assert "old" in page.read_text()
        assert main([]) == 0
        assert "| `reserved` |" in page.read_text()
        assert main(["--check"]) == 0
    finally:
        main.__globals__["DESIGN"] = DOCS / "design"
    assert "stale" in capsys.readouterr().out


def test_the_diagram_equals_the_table_edge_for_edge():
    diagram = GENERATE["phase_diagram"]()
    drawn = {tuple(edge) for edge in re.findall(r"^    (\w+) --> (\w+)$", diagram, re.MULTILINE)}
    legal = {(a.replace("-", "_"), b.replace("-", "_")) for a, afters in LEGAL.items() for b in afters}
    assert drawn == legal
    assert set(re.findall(r"\[\*\] --> (\w+)", diagram)) == {"reserved", "initializing", "stop_unconfirmed"}


def test_the_reconcile_table_has_a_line_for_every_rule_in_order():
    lines = GENERATE["reconcile_table"]().splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == [rule.rule for rule in RULES]
