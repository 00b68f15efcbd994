"""``--sim-seed N`` runs one seed; without it, the seeds each test names."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sim-seed", type=int, default=None, help="run the simulations with this one seed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--sim-seed")
        marker = metafunc.definition.get_closest_marker("seeds")
        count = marker.args[0] if marker is not None else 20
        metafunc.parametrize("seed", [chosen] if chosen is not None else range(count))
