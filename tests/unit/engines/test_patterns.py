"""Patterns are compiled when they are looked for, so that one which cannot be is found here and not in a crash."""

from __future__ import annotations

import pytest

from stoker.engines.llama_cpp.exits import OWN
from stoker.engines.patterns import SHARED, Pattern
from stoker.engines.verdicts import Table


@pytest.mark.parametrize("item", [*SHARED, *OWN], ids=lambda item: item.text[:40])
def test_each_pattern_compiles_and_matches_nothing_in_an_empty_line(item: Pattern) -> None:
    assert item.regex.search("") is None
    assert item.regex is item.regex


def test_all_of_them_joined_compile_too() -> None:
    table = Table((*OWN, *SHARED))
    assert not table.concerns("all is well")
    assert table.concerns("std::bad_alloc")
