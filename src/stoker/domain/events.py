"""Every event there is, and its fields: one table (S-116, control C-13 to C-16).

An event is a name ``noun.past`` with the ids of its subject and fields of its own; with the envelope they make one flat
object. The table is complete: a field that is not in it may not be sent, and one that is in it and not optional may
not be missing. Fields are only ever added. Not known here: who listens, how often, and what the values mean.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

ENVELOPE = frozenset({"id", "at", "event", "scope"})


@dataclass(frozen=True, slots=True)
class EventSpec:
    """``fields`` are an event's own, ``subject`` the ids of what it is about; ``optional`` ones of both may be absent.

    ``topic`` is what a subscriber names to get it.
    """

    fields: frozenset[str]
    topic: str
    subject: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that became true, numbered in the kernel's order. ``at`` is wall time, in seconds."""

    id: str
    seq: int
    at: float
    event: str
    subject: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """The one object that is sent: envelope, ids of the subject, fields (C-13)."""
        return {"id": self.id, "at": self.at, "event": self.event, **self.subject, **self.fields}


# Nouns that are shown, and so subscribed to, as part of something larger.
_TOPICS = {"replica": "session", "unit": "session", "footprint": "session", "residency": "session", "ticket": "queue"}

# Ids of subjects. A mark ``?`` after a name: it may be absent.
_LIFE = "deployment replica generation model engine unit_kind"
_REPLICA = "deployment replica generation? model? engine? unit_kind?"
_ANY_LIFE = "deployment? replica? generation? model? engine? unit_kind?"
_PULL = "pull_id reference"
_NONE = ""

# What several events say alike.
_UNIT = "unit_id rule found detail bytes"
_DECISION = "decision_id kind subject outcome inputs candidates chosen reasons event_id?"
_OPERATION = (
    "operation_id kind subject state stage? progress? cancellable requested_by created_at started_at? ended_at? error? "
    "result? revision"
)
_DEPLOYMENT = "deployment revision origin changes restarts"
_TICKET_ENDED = "ticket_id? request_id deployment code waited_ms by?"
_MODEL = "reference model_id status total_bytes freed_bytes?"
_ENGINE = "engine_id installation_id release host code? message?"
_CACHE = (
    "deployment replica? generation? engine conversation? tokens bytes where reason expected_tokens? cached_tokens? "
    "elapsed_ms"
)
_KEY = "key_id label scopes by"
_REQUEST = (
    "request_id client_request_id? ticket_id? key_id? dialect route translated? model_asked model? deployment? "
    "replica? generation? conversation? lane? priority? queued_at? queue_ms? load_ms? ttft_ms? duration_ms status "
    "code? speaker? end bytes_in? bytes_out? prompt_tokens? completion_tokens? cached_tokens? tokens_per_s? "
    "finish_reasons? retries? trace_id?"
)
_POOL = (
    "pool_id kind device? capacity_bytes budget_bytes budget_origin reserved_bytes headroom_bytes measured_bytes? "
    "outside_bytes? overdraft_bytes unconfirmed_bytes"
)

# (events of one shape, subject, fields)
_TABLE: tuple[tuple[str, str, str], ...] = (
    # S-116
    ("session.reserved", _LIFE, "reservation cards ticket cause"),
    (
        "session.load-progressed",
        _LIFE,
        "stage percent elapsed_ms deadline_ms ceiling_ms attempt substituted_card",
    ),
    ("session.load-completed", _LIFE, "elapsed_ms stages footprint endpoint_kind hardening_missing"),
    (
        "session.load-failed",
        _LIFE,
        "code reason kind message remedy numbers exit excerpt elapsed_ms retry_after_s",
    ),
    ("session.load-cancelled", _LIFE, "stage by elapsed_ms"),
    ("session.settings-adopted", _LIFE, "changed"),
    ("session.liveness-changed", _LIFE, "from to failures in_flight"),
    ("session.drain-begun", _LIFE, "reason in_flight deadline_ms"),
    ("session.stop-begun", _LIFE, "reason phase_before grace_s"),
    (
        "session.stop-unconfirmed",
        _LIFE,
        "unit_id cause survivors reservation attempts next_retry_ms remedy",
    ),
    ("session.crashed", _LIFE, "code kind message numbers exit uptime_ms in_flight_failed excerpt"),
    ("session.ended", _LIFE, "reason also exit confirmed_by released lifetime_ms"),
    ("session.force-released", _LIFE, "by unit_id released cause"),
    ("replica.held", _REPLICA, "cause code failures until"),
    ("replica.released", _REPLICA, "by"),
    ("unit.adopted unit.reaped unit.forgotten unit.reported", _ANY_LIFE, _UNIT),
    (
        "image.pull-progressed",
        _ANY_LIFE,
        "reference bytes_done bytes_total layers_done layers_total rate_bytes_s eta_s",
    ),
    ("image.pulled", _ANY_LIFE, "reference elapsed_ms"),
    ("image.pull-failed", _ANY_LIFE, "reference code message"),
    ("runtime.reached", _NONE, "kind rootless version"),
    ("runtime.lost", _NONE, "cause"),
    # control, section 5
    (
        "pull.progressed",
        _PULL,
        "phase files_done files_total bytes_done bytes_total bytes_reused rate_bytes_s eta_s attempt message",
    ),
    ("pull.finished", _PULL, "bytes_total bytes_reused elapsed_ms"),
    ("pull.failed", _PULL, "code message remedy"),
    ("pull.cancelled", _PULL, "by"),
    ("session.earmarked", _LIFE, "for_deployment since in_flight"),
    ("session.earmark-lifted", _LIFE, "for_deployment cause"),
    ("session.measured", _LIFE, "pool_id reserved_bytes measured_bytes error_ratio"),
    ("footprint.exceeded", _LIFE, "pool_id reserved_bytes peak_bytes"),
    ("footprint.suspected", _LIFE, "pool_id structural_bytes used_bytes source"),
    ("residency.thrashed", _NONE, "deployment replica swaps window_s for_deployment"),
    ("daemon.started", _NONE, "instance version reconciled resumed"),
    ("daemon.stop-begun", _NONE, "reason deadline_ms"),
    ("config.reloaded", _NONE, "revision changes"),
    ("config.rejected", _NONE, "file line? column? key? message kept_revision"),
    ("deployment.created deployment.changed deployment.removed", _NONE, _DEPLOYMENT),
    ("admission.decided", _NONE, f"{_DECISION} verdict needed headroom would_evict plan_digest"),
    ("eviction.decided", _NONE, f"{_DECISION} victims for_deployment ticket_id? earmark_at?"),
    ("admission.stalled", _NONE, "deployment ticket_id? waited_ms on"),
    ("pool.changed", _NONE, f"{_POOL} cause"),
    (
        "ticket.queued",
        _NONE,
        "ticket_id request_id deployment lane priority key_id? position starts_by blocked_by",
    ),
    ("ticket.granted", _NONE, "ticket_id request_id deployment replica generation queue_ms"),
    ("ticket.refused ticket.expired ticket.cancelled", _NONE, _TICKET_ENDED),
    ("ticket.moved", _NONE, "ticket_id deployment from_position to_position by"),
    ("queue.changed", _NONE, "deployment places in_flight waiting lanes first"),
    ("queue.limits-changed", _NONE, "deployment? changes by"),
    ("queue.stalled", _NONE, "deployment ticket_id blocked_by waited_ms"),
    ("queue.recovered", _NONE, "deployment stalled_ms"),
    ("request.finished", _NONE, _REQUEST),
    ("operation.created operation.progressed operation.finished", _NONE, _OPERATION),
    ("model.added model.changed model.removed", _NONE, _MODEL),
    ("engine.installed engine.removed engine.failed", _NONE, _ENGINE),
    (
        "cache.saved cache.restored cache.restore-failed cache.evicted cache.purged cache.cleared",
        _NONE,
        _CACHE,
    ),
    ("key.created key.rotated key.revoked key.expired", _NONE, _KEY),
    (
        "stream.snapshot-taken",
        _NONE,
        "last_event_id status deployments sessions queue pools operations cache",
    ),
    ("stream.gapped", _NONE, "from? to reason"),
)


def _names(marked: str) -> frozenset[str]:
    return frozenset(name.removesuffix("?") for name in marked.split())


def _marked(marked: str) -> frozenset[str]:
    return frozenset(name.removesuffix("?") for name in marked.split() if name.endswith("?"))


def _specs() -> dict[str, EventSpec]:
    specs: dict[str, EventSpec] = {}
    for events, subject, fields in _TABLE:
        for event in events.split():
            if event in specs:
                raise AssertionError(f"two rows for {event}")
            noun = event.partition(".")[0]
            optional = _marked(subject) | _marked(fields)
            specs[event] = EventSpec(_names(fields), _TOPICS.get(noun, noun), _names(subject), optional)
    return specs


EVENTS: Mapping[str, EventSpec] = MappingProxyType(_specs())


def faults(event: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with ``fields`` as an event's own ones: one sentence per fault, empty if they are complete."""
    spec = EVENTS.get(event)
    if spec is None:
        return (f"there is no event {event}",)
    return _differences(event, set(fields), spec.fields, spec.optional)


def faults_of(event: Event) -> tuple[str, ...]:
    """The same for a whole event: envelope, ids of its subject and fields, wherever they stand."""
    spec = EVENTS.get(event.event)
    if spec is None:
        return (f"there is no event {event.event}",)
    return _differences(event.event, set(event.flat()), ENVELOPE | spec.subject | spec.fields, spec.optional)


def _differences(event: str, given: set[str], known: frozenset[str], optional: frozenset[str]) -> tuple[str, ...]:
    missing = [f"{event} lacks {name}" for name in sorted(known - optional - given)]
    unknown = [f"{event} has no field {name}" for name in sorted(given - known)]
    return (*missing, *unknown)


def is_wanted(event: str, topics: Collection[str]) -> bool:
    """Does a subscriber to ``topics`` get this event? No topics: everything; a noun is a topic too (C-14)."""
    noun = event.partition(".")[0]
    return not topics or noun in topics or EVENTS[event].topic in topics
