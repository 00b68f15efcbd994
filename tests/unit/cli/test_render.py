"""How sizes, times and tables look."""

from __future__ import annotations

import click
import pytest

from stoker.cli import render

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"), (0, "0 B"), (1023, "1023 B"), (KIB, "1.0 KiB"), (1536, "1.5 KiB"), (98_362_432, "93.8 MiB"),
        (100 * MIB, "100 MiB"), (MIB - 1, "1.0 MiB"), (GIB - 1, "1.0 GiB"), (4 * GIB, "4.0 GiB"), (3 << 40, "3.0 TiB"),
        (5 << 50, "5120 TiB"), (-GIB, "-1.0 GiB"),
    ],
)  # fmt: skip
def test_sizes_have_the_unit_that_keeps_them_short(count: int | None, shown: str) -> None:
    assert render.size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"), (-3, "0 ms"), (0.25, "250 ms"), (0.9999, "1.0 s"), (4.21, "4.2 s"), (9.97, "10 s"), (42, "42 s"),
        (89, "89 s"), (90, "2 min"), (240, "4 min"), (5400, "2 h"), (10_800, "3 h"), (172_800, "2 d"),
    ],
)  # fmt: skip
def test_durations_are_one_number_and_one_unit(seconds: float | None, shown: str) -> None:
    assert render.duration(seconds) == shown


def test_moments_are_told_from_now() -> None:
    assert render.ago(None, 100) == render.until(None, 100) == "-"
    assert (render.ago(98, 100), render.ago(0, 240)) == ("just now", "4 min ago")
    assert (render.until(100.5, 100), render.until(90, 100), render.until(400, 100)) == ("now", "now", "in 5 min")


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [(0, 10, "░░░░"), (1, 1000, "█░░░"), (5, 10, "██░░"), (999, 1000, "███░"), (10, 10, "████"), (15, 10, "████"),
     (5, 0, "░░░░")],
)  # fmt: skip
def test_a_bar_is_empty_or_full_only_when_it_is(part: float, whole: float, shown: str) -> None:
    assert render.bar(part, whole, 4) == shown


def test_colour_takes_no_room_in_a_table() -> None:
    plain = render.table(("A", "B"), [("ready", "1"), ("x", "22")], right=frozenset({"B"}))
    coloured = render.table(("A", "B"), [(click.style("ready", fg="green"), "1"), ("x", "22")], right=frozenset({"B"}))
    assert plain == "A       B\nready   1\nx      22"
    assert click.unstyle(coloured) == plain


def test_states_that_need_a_look_stand_out() -> None:
    assert render.state("ready") == click.style("ready", fg="green")
    assert render.state("stop-unconfirmed") == click.style("stop-unconfirmed", fg="red")
    assert (render.state("gone"), render.state("of-tomorrow"), render.state("")) == ("gone", "of-tomorrow", "-")


def test_facts_stand_in_two_columns() -> None:
    assert render.facts([("A", "1"), ("Long", "x\ny"), ("E", "")]) == "A     1\nLong  x\n      y\nE"
    assert render.facts([]) == ""


def test_memory_names_the_pools_that_hold_some() -> None:
    assert render.by_pool({"gpu-0": GIB, "ram": 0}) == "1.0 GiB gpu-0"
    assert render.by_pool({}) == "-"


def test_counts_are_grouped() -> None:
    assert (render.count(131_072), render.count(0), render.count(None)) == ("131 072", "0", "-")
