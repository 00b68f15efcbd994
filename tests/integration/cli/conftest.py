from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))  # the stand-in daemon serves both

from cli_driver import Cli
from stand_in_daemon import StandIn


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because the path of a Unix socket is."""
    made = tempfile.mkdtemp(prefix="stk", dir="/tmp")
    yield Path(made)
    shutil.rmtree(made)


@pytest.fixture
def daemon(folder: Path) -> Iterator[StandIn]:
    """A daemon of the home ``folder`` that is found by its owner lock."""
    with StandIn(folder).serving() as stand_in, stand_in.owning(folder / "data"):
        yield stand_in


@pytest.fixture
def stoker(folder: Path) -> Cli:
    return Cli(folder)
