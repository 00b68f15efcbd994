"""llama.cpp keeps the adapter contract (E-108)."""

from __future__ import annotations

import functools

import pytest
from llama_samples import case

from stoker.testing.engines import CHECKS, EngineCase


@functools.cache
def the_case() -> EngineCase:
    return case()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_adapter_keeps(check) -> None:
    check(the_case())
