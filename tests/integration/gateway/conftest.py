"""The gateway on a real listener, before a stub engine on a real socket. uvloop, as in production."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gateway_rig import Bench, bench


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
async def at(anyio_backend: Any) -> AsyncIterator[Bench]:
    async with bench() as made:
        yield made
