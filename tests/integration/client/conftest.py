from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in_daemon import StandIn

from stoker.client import StokerClient


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, because the path of a Unix socket is."""
    made = tempfile.mkdtemp(prefix="stk", dir="/tmp")
    yield Path(made)
    shutil.rmtree(made)


@pytest.fixture
def daemon(folder: Path) -> Iterator[StandIn]:
    with StandIn(folder).serving() as stand_in:
        yield stand_in


@pytest.fixture
def client(daemon: StandIn) -> Iterator[StokerClient]:
    with StokerClient(daemon.socket, timeout_s=5) as made:
        yield made
