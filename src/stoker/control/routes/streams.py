"""Event streams and logs (C-13 to C-15, S-24)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from stoker.control import sse, views
from stoker.control.desk import Desk, Here, Named, answer
from stoker.control.kept import KeptRoute
from stoker.domain.events import EVENTS
from stoker.errors import ErrorCode, UsageError, error_for
from stoker.ids import Generation
from stoker.ports.units import LogLine

router = APIRouter(prefix="/v1", route_class=KeptRoute)

_TOPICS = frozenset(spec.topic for spec in EVENTS.values())
_TIMES = frozenset({"at", "since", "until", "created_at", "started_at", "ended_at", "earmark_at", "queued_at"})
_MOST_LINES = 10_000
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

Tail = Annotated[int, Query(ge=0, le=_MOST_LINES, description="How many of the last lines.")]
Follow = Annotated[bool, Query(description="Go on with new lines, as server-sent events.")]


@router.get("/events", response_class=Response, responses=_STREAM)
async def events(
    desk: Here,
    topics: Annotated[str | None, Query(max_length=512, description="Only these, separated by commas.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=256)] = None,
) -> Response:
    """A snapshot, or what was missed since ``Last-Event-ID``, then every event as it becomes true."""
    source = desk.runtime.subscribe(last_event_id=last_event_id, topics=_topics(topics))
    scope = desk.runtime.status().scope
    return sse.EventStream(source, lambda event: _event(desk, scope, event), desk.closing, waits_for_first=False)


@router.get("/logs", response_model=views.Log, responses=_STREAM)
async def daemon_log(desk: Here, tail: Tail = 200, follow: Follow = False) -> Response:
    """The daemon's own log."""
    return await _log(desk, None, tail, follow=follow)


@router.get("/deployments/{name}/-/logs", response_model=views.Log, responses=_STREAM)
async def engine_log(
    desk: Here,
    name: Named,
    generation: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    tail: Tail = 200,
    follow: Follow = False,
) -> Response:
    """The engine's own words: of the session that lives, else of the last attempt; the answer says which."""
    subject: str | Generation = name
    if generation is not None:
        await _check_life(desk, name, generation)
        subject = Generation(generation)
    return await _log(desk, subject, tail, follow=follow)


async def _check_life(desk: Desk, name: str, generation: int) -> None:
    """A generation must be a life of the deployment in the path."""
    deployment = desk.runtime.deployment(name)
    if generation in deployment.sessions:
        return
    known = await desk.runtime.attempts(name, None, 500)
    if all(attempt.generation != generation for attempt in known):
        raise error_for(
            ErrorCode.SESSION_NOT_FOUND,
            f"{deployment.name} has no session {generation} and no attempt of that number.",
            remedy="See its attempts.",
        )


async def _log(desk: Desk, subject: str | Generation | None, tail: int, *, follow: bool) -> Response:
    source = desk.runtime.logs(subject, tail=tail, follow=follow)
    if follow:
        return sse.EventStream(source, lambda item: _line_event(desk, item), desk.closing, waits_for_first=True)
    told: dict[str, Any] = {}
    lines: list[views.Line] = []
    async with aclosing(cast("Any", source)):
        async for item in cast("AsyncIterator[Any]", source):
            if isinstance(item, LogLine):
                lines.append(_line(desk, item))
            else:
                told = desk.scrubber.value(item)
    return answer(views.Log(lines=lines, **told))


def _line_event(desk: Desk, item: LogLine | Mapping[str, Any]) -> bytes:
    if isinstance(item, LogLine):
        return sse.message(_line(desk, item).model_dump_json(), event="line")
    return sse.message(desk.scrubber.value(item), event="life")


def _line(desk: Desk, line: LogLine) -> views.Line:
    return views.Line(
        wall=line.wall or None, stream=line.stream, text=desk.scrubber.text(line.text), dropped=line.dropped,
        repaint=line.repaint,
    )  # fmt: skip


def _topics(given: str | None) -> frozenset[str] | None:
    if given is None:
        return None
    asked = frozenset(topic.strip() for topic in given.split(","))
    if not asked <= _TOPICS:
        raise UsageError(
            ErrorCode.INVALID_PARAMETER,
            f"{', '.join(sorted(asked - _TOPICS))[:200]!r} is no topic of events.",
            remedy=f"Use some of: {', '.join(sorted(_TOPICS))}.",
            param="topics",
        )
    return asked


def _event(desk: Desk, scope: str, event: Mapping[str, Any]) -> bytes:
    """One event as it goes out: envelope first, times as text, nothing that is secret."""
    name, id_ = str(event["event"]), str(event["id"])
    fields = {key: value for key, value in event.items() if key not in {"id", "at", "event"}}
    if name == "stream.snapshot-taken":
        fields = desk.snapshot(event).model_dump(mode="json", exclude={"at"})
    elif name.startswith("operation."):
        fields = desk.operation(event).model_dump(mode="json")
    elif name.startswith("deployment."):
        fields["changes"] = [desk.change(each) for each in fields["changes"]]
    else:
        fields = desk.scrubber.value({key: _time(key, value) for key, value in fields.items()})
    envelope = {"id": id_, "at": views.rfc3339(event.get("at") or desk.wall()), "event": name, "scope": scope}
    return sse.message({**envelope, **fields}, event=name, id_=id_)


def _time(name: str, value: Any) -> Any:
    is_moment = name in _TIMES and isinstance(value, int | float) and not isinstance(value, bool)
    return views.rfc3339(value) if is_moment else value
