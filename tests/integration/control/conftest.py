"""Makes the rig of the unit tests and the helper beside this file importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parents[1] / "unit" / "control")]


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: the daemon runs on uvloop, the library on whichever there is."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}
