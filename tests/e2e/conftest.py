"""Real daemons in homes of their own; what a test leaves running is ended and fails it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from running import Running

from stoker.testing.tiny_model import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ten tiny models whose answers say who they are."""
    folder = tmp_path_factory.mktemp("models")
    words = ["ash", "birch", "cedar", "dogwood", "elm", "fir", "gum", "hazel", "ironwood", "juniper"]
    models = {}
    for word in words:
        path = folder / f"{word}.gguf"
        write_tiny_gguf(path, text=f"This kettle burns {word} tonight.")
        models[word] = path
    return models


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, because sockets live below it."""
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def daemons(home: Path) -> Iterator[list[Running]]:
    made: list[Running] = []
    yield made
    for daemon in made:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
