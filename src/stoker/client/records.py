"""What the control API answers, as frozen records (C-7, C-8).

A newer daemon may add members and an older one may lack some: unknown ones are kept in ``raw`` only, missing ones have
a default that claims nothing. Times are seconds since 1970, whichever way they were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from stoker.client.problems import error_from
from stoker.errors import ErrorCode, error_for

ENDED = frozenset({"succeeded", "failed", "cancelled"})


class Moment(float):
    """Seconds since 1970, read from a number or from RFC 3339."""

    __slots__ = ()


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """``raw`` is the object as it came, for those who print or forward it."""

    raw: Mapping[str, Any] = msgspec.field(default_factory=dict, name="-raw")


class Operation(Record, frozen=True, kw_only=True):
    operation_id: str
    kind: str = ""
    subject: str = ""
    state: str = "pending"
    stage: str | None = None
    progress: Mapping[str, Any] | None = None
    cancellable: bool = False
    requested_by: str = ""
    created_at: Moment | None = None
    started_at: Moment | None = None
    ended_at: Moment | None = None
    error: Mapping[str, Any] | None = None
    result: Mapping[str, Any] = {}
    revision: int = 0

    @property
    def is_over(self) -> bool:
        return self.state in ENDED

    @property
    def percent(self) -> float | None:
        """How far it is, None when nobody knows."""
        done, total = ((self.progress or {}).get(name) for name in ("done", "total"))
        return 100 * done / total if isinstance(done, int | float) and total else None

    @property
    def elapsed_s(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.started_at)

    def raise_if_failed(self) -> Operation:
        """The operation itself if it succeeded; else raises the `StokerError` that it ended with."""
        if self.error is not None:
            raise error_from(self.error)
        if self.state in {"failed", "cancelled"}:
            code = ErrorCode.LOAD_CANCELLED if self.state == "cancelled" else ErrorCode.INTERNAL
            raise error_for(code, f"The {self.kind} of {self.subject} was {self.state} without a stated reason.")
        return self


class Session(Record, frozen=True, kw_only=True):
    generation: int
    deployment: str = ""
    replica: int = 0
    phase: str = ""
    reason: str | None = None
    also: tuple[str, ...] = ()
    since: Moment | None = None
    engine: str = ""
    installation: str = ""
    unit: Mapping[str, Any] = {}
    reservation: Mapping[str, int] = {}
    measured: Mapping[str, int] = {}
    slots: int | None = None
    width: int | None = None
    in_flight: int = 0
    earmarked_for: str | None = None
    liveness: str = ""
    context_tokens: int | None = None
    capabilities: tuple[str, ...] = ()
    startup: Mapping[str, Any] | None = None
    last_used: Moment | None = None
    idle_deadline: Moment | None = None
    pinned: bool = False
    upstream_auth: str = ""
    hardening_missing: tuple[str, ...] = ()
    exit: Mapping[str, Any] | None = None
    launch: Mapping[str, Any] = {}
    confirmed_by: str | None = None
    unconfirmed: Mapping[str, Any] | None = None


class Deployment(Record, frozen=True, kw_only=True):
    name: str
    names: tuple[str, ...] = ()
    spec: Mapping[str, Any] = {}
    origin: str = ""
    revision: int = 0
    state: str = ""
    sessions: tuple[int, ...] = ()
    places: int = 0
    in_flight: int = 0
    waiting: int = 0
    estimate: Mapping[str, int] = {}
    hold: Mapping[str, Any] | None = None
    last_error: Mapping[str, Any] | None = None
    model: str | None = None
    engine: str | None = None
    size_bytes: int | None = None
    context_tokens: int | None = None
    last_used: Moment | None = None


class Pool(Record, frozen=True, kw_only=True):
    """Figures nobody could read are None, never 0."""

    pool_id: str
    kind: str = ""
    device: str | None = None
    capacity_bytes: int | None = None
    budget_bytes: int = 0
    budget_origin: str = ""
    reserved_bytes: int = 0
    headroom_bytes: int = 0
    measured_bytes: int | None = None
    outside_bytes: int | None = None
    overdraft_bytes: int = 0
    unconfirmed_bytes: int = 0
    reservations: tuple[Mapping[str, int], ...] = ()


class Status(Record, frozen=True, kw_only=True):
    instance: str = ""
    version: str = ""
    scope: str = ""
    state: str = ""
    started_at: Moment | None = None
    addresses: Mapping[str, str] = {}
    open: int = 0
    waiting: int = 0
    in_flight: int = 0
    sessions: Mapping[str, int] = {}
    pools: tuple[Pool, ...] = ()
    config: Mapping[str, Any] = {}
    warnings: tuple[Any, ...] = ()


class LogLine(Record, frozen=True, kw_only=True):
    """``text`` without its line end; ``stream``: out or err."""

    text: str
    wall: Moment | None = None
    stream: str = "out"
    dropped: int = 0


class Event(Record, frozen=True, kw_only=True):
    """One event of the stream: ``raw`` holds all its fields (C-13)."""

    id: str = ""
    event: str = ""
    at: Moment | None = None

    def get(self, name: str, default: Any = None) -> Any:
        return self.raw.get(name, default)


R = TypeVar("R", bound=Record)


class Page(Generic[R]):
    """A whole list, all pages of it together, and the objects as they came."""

    def __init__(self, items: tuple[R, ...]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[R]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def raw(self) -> dict[str, Any]:
        return {"items": [item.raw for item in self.items], "next": None}


def read(kind: type[R], tree: Mapping[str, Any]) -> R:
    """One record from one JSON object; `StokerError` ``internal`` for what cannot be one."""
    try:
        record = msgspec.convert(tree, kind, dec_hook=_decode)
    except msgspec.ValidationError as exc:
        raise error_for(
            ErrorCode.INTERNAL,
            f"The daemon answered something that is no {kind.__name__.lower()}: {exc}.",
            remedy="Use a client and a daemon of the same release.",
        ) from exc
    msgspec.structs.force_setattr(record, "raw", tree)
    return record


def _decode(kind: type, value: Any) -> Any:
    if kind is not Moment:
        raise NotImplementedError(kind)
    if isinstance(value, str):
        return Moment(datetime.fromisoformat(value).timestamp())
    if isinstance(value, int | float):
        return Moment(value)
    raise ValueError(f"{value!r} is no time")
