"""Every metric of Stoker as a table, what is counted, and the text a scraper reads (C-28).

Only names of `TABLE` exist: anything else is a bug and fails where it is counted. Counting is a dictionary update and
never waits; a scrape renders one frozen copy and changes nothing. ``deployment`` is the only label with a user's text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Labels = tuple[str, ...]

_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_LONG = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_RATIO = (0.25, 0.5, 0.75, 0.85, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.15, 1.25, 1.5, 2.0)
_SPEED = (1.0, 2.0, 5.0, 10.0, 20.0, 35.0, 50.0, 75.0, 100.0, 150.0, 200.0, 400.0, 800.0)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """``kind``: gauge, counter or histogram. ``bounds`` are a histogram's upper limits, without the infinite one."""

    name: str
    kind: str
    labels: Labels
    help: str
    bounds: tuple[float, ...] = ()


def _table() -> dict[str, MetricSpec]:
    rows: list[tuple[str, str, str, str, tuple[float, ...]]] = [
        ("build_info", "gauge", "version", "Always 1; the version that runs.", ()),
        ("daemon_start_time_seconds", "gauge", "", "When the daemon started, seconds since the epoch.", ()),
        ("kernel_steps_total", "counter", "kind", "Kernel steps by kind of input.", ()),
        ("kernel_step_seconds", "histogram", "", "Time one kernel step took.", _SHORT),
        ("adapter_faults_total", "counter", "engine method", "Calls of an adapter that broke its contract.", ()),
        ("observations_dropped_total", "counter", "kind phase", "Observations that no longer applied.", ()),
        ("kernel_late_releases_total", "counter", "", "Requests that left after their session was gone.", ()),
        ("kernel_missed_wakeups_total", "counter", "", "Tickets that the check found grantable and waiting.", ()),
        ("kernel_faults_total", "counter", "", "Faults inside the kernel.", ()),
        ("pool_capacity_bytes", "gauge", "pool", "Memory of the pool.", ()),
        ("pool_budget_bytes", "gauge", "pool", "Memory of the pool that may be used.", ()),
        ("pool_reserved_bytes", "gauge", "pool", "Memory reserved by sessions.", ()),
        ("pool_measured_bytes", "gauge", "pool", "Memory measured in use by sessions.", ()),
        ("pool_outside_bytes", "gauge", "pool", "Memory in use by others.", ()),
        ("pool_unconfirmed_bytes", "gauge", "pool", "Memory held by stops that are not confirmed.", ()),
        ("footprint_error_ratio", "histogram", "engine pool_kind source", "Measured footprint by estimate.", _RATIO),
        ("sessions", "gauge", "deployment phase", "Sessions by phase.", ()),
        ("session_starts_total", "counter", "deployment outcome", "Loads by outcome.", ()),
        ("session_ends_total", "counter", "deployment reason", "Ended sessions by reason.", ()),
        ("replicas_held", "gauge", "deployment", "Replicas that may not start for now.", ()),
        ("load_seconds", "histogram", "deployment stage", "Time of each stage of a load.", _LONG),
        ("stop_seconds", "histogram", "deployment", "Time from a stop to its confirmed exit.", _LONG),
        ("swap_overhead_seconds", "histogram", "", "Time a swap took beside stop and load.", _LONG),
        ("admissions_total", "counter", "verdict", "Admission decisions.", ()),
        ("evictions_total", "counter", "deployment cause", "Evicted sessions.", ()),
        ("sessions_earmarked_seconds_total", "counter", "deployment", "Time sessions spent earmarked.", ()),
        ("tickets_waiting", "gauge", "deployment lane", "Requests that wait.", ()),
        ("requests_in_flight", "gauge", "deployment", "Requests being served.", ()),
        ("places", "gauge", "deployment", "Requests that can be served at once.", ()),
        ("queue_stalled", "gauge", "", "1 while a queue makes no progress.", ()),
        ("ticket_wait_seconds", "histogram", "deployment lane", "Time from ticket to grant.", _LONG),
        ("tickets_total", "counter", "deployment outcome", "Tickets by outcome.", ()),
        ("requests_total", "counter", "deployment route code", "Requests by route and code.", ()),
        ("request_seconds", "histogram", "deployment", "Time from the first byte in to the last byte out.", _LONG),
        ("time_to_first_token_seconds", "histogram", "deployment", "Time from grant to the first token.", _LONG),
        ("output_tokens_per_second", "histogram", "deployment", "Speed of an answer.", _SPEED),
        ("tokens_total", "counter", "deployment kind", "Tokens: prompt, completion, cached.", ()),
        ("client_disconnects_total", "counter", "stage", "Clients that left early.", ()),
        ("abort_seconds", "histogram", "", "Time from a client leaving to the engine stopping its work.", _SHORT),
        ("upstream_retries_total", "counter", "", "Requests sent to an engine once more.", ()),
        ("stream_breaks_total", "counter", "deployment code", "Answers that broke off.", ()),
        ("gateway_connections", "gauge", "", "Open connections of clients.", ()),
        ("gateway_body_bytes", "gauge", "where", "Request bodies held, in memory and on disk.", ()),
        ("gateway_refusals_total", "counter", "code", "Requests refused at the door.", ()),
        ("cache_bytes", "gauge", "deployment where", "Prompt cache, live and on disk.", ()),
        ("cache_conversations", "gauge", "deployment where", "Conversations in the prompt cache.", ()),
        ("cache_requests_total", "counter", "deployment source", "Requests by where their prefix was found.", ()),
        ("cache_restores_total", "counter", "deployment outcome", "Restored conversations.", ()),
        ("cache_save_seconds", "histogram", "", "Time to save one conversation.", _LONG),
        ("operations", "gauge", "kind state", "Operations.", ()),
        ("pull_bytes_total", "counter", "", "Bytes fetched from hubs.", ()),
        ("disk_free_bytes", "gauge", "folder", "Free space of a folder's disk.", ()),
        ("journal_write_seconds", "histogram", "", "Time of one durable write.", _SHORT),
        ("event_subscribers", "gauge", "", "Readers of the event stream.", ()),
        ("event_gaps_total", "counter", "reason", "Gaps told to readers of events.", ()),
        ("log_dropped_total", "counter", "", "Log records dropped.", ()),
        ("records_dropped_total", "counter", "", "Request records dropped.", ()),
        ("config_reloads_total", "counter", "outcome", "Reloads of the configuration.", ()),
        ("engine_metrics_age_seconds", "gauge", "deployment replica", "Age of the engine's own figures.", ()),
    ]
    return {
        f"stoker_{name}": MetricSpec(f"stoker_{name}", kind, tuple(labels.split()), text, bounds)
        for name, kind, labels, text, bounds in rows
    }


TABLE: Mapping[str, MetricSpec] = _table()


@dataclass(slots=True)
class Histogram:
    """Counts per bucket, the infinite one last, and the sum."""

    counts: list[int]
    total: float = 0.0


Series = Mapping[Labels, float | Histogram]


@dataclass(frozen=True, slots=True)
class EngineText:
    """One session's own metrics as its engine gave them, and how old they are."""

    deployment: str
    replica: int
    engine: str
    text: str
    age_s: float


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All series at one moment; nothing in it changes any more."""

    series: Mapping[str, Series]
    engines: tuple[EngineText, ...] = field(default=())


class Meters:
    """What is counted while the daemon runs. Label values come in the order of the table."""

    def __init__(self) -> None:
        self._series: dict[str, dict[Labels, float | Histogram]] = {name: {} for name in TABLE}

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        series = self._of(name, "counter", labels)
        before = series.get(labels, 0.0)
        assert not isinstance(before, Histogram)
        series[labels] = before + by

    def gauge(self, name: str, *labels: str, value: float) -> None:
        self._of(name, "gauge", labels)[labels] = value

    def observe(self, name: str, *labels: str, value: float) -> None:
        series = self._of(name, "histogram", labels)
        bounds = TABLE[name].bounds
        histogram = series.setdefault(labels, Histogram([0] * (len(bounds) + 1)))
        assert isinstance(histogram, Histogram)
        histogram.counts[bisect_left(bounds, value)] += 1
        histogram.total += value

    def forget(self, deployment: str) -> None:
        """Series of a deployment end with it."""
        for name, spec in TABLE.items():
            if "deployment" in spec.labels:
                place = spec.labels.index("deployment")
                kept = {labels: value for labels, value in self._series[name].items() if labels[place] != deployment}
                self._series[name] = kept

    def freeze(
        self, gauges: Mapping[str, Mapping[Labels, float]] | None = None, engines: Iterable[EngineText] = ()
    ) -> MetricsSnapshot:
        """A copy as of now. ``gauges`` are whole metrics read from the kernel at this moment; they replace ours."""
        frozen: dict[str, Series] = {
            name: {
                labels: Histogram(value.counts[:], value.total) if isinstance(value, Histogram) else value
                for labels, value in series.items()
            }
            for name, series in self._series.items()
        }
        for name, series in (gauges or {}).items():
            for labels in series:
                self._of(name, "gauge", labels)
            frozen[name] = dict(series)
        return MetricsSnapshot(frozen, tuple(engines))

    def _of(self, name: str, kind: str, labels: Labels) -> dict[Labels, float | Histogram]:
        spec = TABLE.get(name)
        if spec is None or spec.kind != kind or len(labels) != len(spec.labels):
            raise AssertionError(f"{name} is no {kind} with {len(labels)} labels in the table of metrics")
        return self._series[name]


def render(snapshot: MetricsSnapshot) -> str:
    """Prometheus text of one snapshot: ours, then the engines' own under their names, relabelled."""
    from prometheus_client.exposition import generate_latest  # only a daemon that is scraped needs it
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(snapshot))
    return generate_latest(registry).decode()


class _Snapshot:
    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        ages: Series = {(each.deployment, str(each.replica)): each.age_s for each in self._snapshot.engines}
        series: dict[str, Series] = {**self._snapshot.series, "stoker_engine_metrics_age_seconds": ages}
        for name, spec in TABLE.items():
            if series.get(name):
                yield _family(spec, series[name])
        yield from engine_families(self._snapshot.engines)


def _family(spec: MetricSpec, series: Series) -> Metric:
    from prometheus_client.metrics_core import Metric

    base = spec.name.removesuffix("_total") if spec.kind == "counter" else spec.name
    family = Metric(base, spec.help, spec.kind)
    for values, value in sorted(series.items(), key=lambda item: item[0]):
        labels = dict(zip(spec.labels, values, strict=True))
        if isinstance(value, Histogram):
            running = 0
            for bound, count in zip((*map(str, spec.bounds), "+Inf"), value.counts, strict=True):
                running += count
                family.add_sample(f"{spec.name}_bucket", {**labels, "le": bound}, running)
            family.add_sample(f"{spec.name}_count", labels, running)
            family.add_sample(f"{spec.name}_sum", labels, value.total)
        else:
            family.add_sample(spec.name, labels, value)
    return family


def engine_families(engines: Iterable[EngineText]) -> Iterator[Metric]:
    """The engines' own metrics with ``deployment``, ``replica`` and ``engine`` added, one family a name.

    An answer that does not parse is left out whole; names of ours are not taken from an engine.
    """
    from prometheus_client.metrics_core import Metric
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, Metric] = {}
    for each in engines:
        ours = {"deployment": each.deployment, "replica": str(each.replica), "engine": each.engine}
        try:
            families = list(text_string_to_metric_families(each.text))
        except (ValueError, KeyError, IndexError):
            continue
        for family in families:
            if family.name.startswith("stoker_"):
                continue
            kept = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            if kept.type != family.type:
                continue
            for sample in family.samples:
                kept.add_sample(sample.name, {**sample.labels, **ours}, sample.value)
    yield from found.values()
