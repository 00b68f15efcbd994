"""Shared fixtures. Tests that need time or chance get them from the simulation, never from the machine."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
