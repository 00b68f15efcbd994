"""Our own figures at one moment, for whoever scrapes (C-28, R-113). Scraping touches neither use nor idle time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stoker.domain.restart import Held, may_start
from stoker.observability.metrics import Labels, MetricsSnapshot
from stoker.runtime.bus import Bus
from stoker.runtime.census import Census
from stoker.runtime.state import KernelState


def freeze(state: KernelState, census: Census, bus: Bus) -> MetricsSnapshot:
    """Every counter, and the gauges as the kernel stands now. Figures nobody could read are absent, never 0."""
    gauges: dict[str, Mapping[Labels, float]] = {
        "stoker_build_info": {(state.version,): 1.0},
        "stoker_daemon_start_time_seconds": {(): state.started_wall},
        "stoker_event_subscribers": {(): float(bus.subscribers)},
        "stoker_queue_stalled": {(): float(bool(state.stalled))},
        **_pools(census),
        **_deployments(state, census),
    }
    phases = Counter((s.state.deployment, str(s.phase)) for s in state.sessions.values())
    gauges["stoker_sessions"] = {key: float(count) for key, count in phases.items()}
    operations = Counter((op.kind, op.state) for op in state.operations.values())
    gauges["stoker_operations"] = {key: float(count) for key, count in operations.items()}
    return state.meters.freeze(gauges)


def _pools(census: Census) -> dict[str, Mapping[Labels, float]]:
    figures = ("capacity", "budget", "reserved", "measured", "outside", "unconfirmed")
    return {
        f"stoker_pool_{figure}_bytes": {
            (pool.pool_id,): float(value)
            for pool in census.pools()
            if (value := getattr(pool, f"{figure}_bytes")) is not None
        }
        for figure in figures
    }


def _deployments(state: KernelState, census: Census) -> dict[str, Mapping[Labels, float]]:
    views = census.deployments()
    held: dict[Labels, float] = {
        (deployment.name,): float(
            sum(isinstance(may_start(r.restart, state.now), Held) for r in deployment.replicas.values())
        )
        for deployment in state.deployments.values()
    }
    return {
        "stoker_requests_in_flight": {(view.name,): float(view.in_flight) for view in views},
        "stoker_places": {(view.name,): float(view.places) for view in views},
        "stoker_tickets_waiting": {(view.name, "interactive"): float(view.waiting) for view in views},
        "stoker_replicas_held": held,
    }
