"""Prometheus text of our own figures, from the kernel's state in one step (C-28, R-113). Scraping touches nothing."""

from __future__ import annotations

from stoker.runtime.bus import Bus
from stoker.runtime.census import Census
from stoker.runtime.state import KernelState


def metrics_text(state: KernelState, census: Census, bus: Bus) -> str:
    raise NotImplementedError
