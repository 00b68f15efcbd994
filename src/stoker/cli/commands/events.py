"""``events``: what happens, one line each (C-13)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from stoker.cli import render
from stoker.cli.invocation import Command, Invocation, pass_invocation
from stoker.client.records import Event

_ENVELOPE = frozenset({"id", "at", "event", "scope"})
# What an event is about, the most telling first.
_SUBJECTS = ("deployment", "generation", "ticket_id", "operation_id", "pool_id", "reference", "engine_id", "key_id")
_SHOWN = 12
_LONG = 60


@click.command("events", cls=Command)
@click.option("--after", metavar="ID", help="Begin after this event.")
@click.option("--topics", metavar="TOPIC,…", help="Only these, such as session,queue.")
@pass_invocation
def events(invocation: Invocation, *, after: str | None, topics: str | None) -> None:
    """What happens, as it happens. With --json one object a line."""
    wanted = tuple(topic.strip() for topic in (topics or "").split(",") if topic.strip())
    with invocation.client() as client:
        for event in client.events(after=after, topics=wanted):
            invocation.give(json.dumps(event.raw, ensure_ascii=False) if invocation.as_json else line(event))


def line(event: Event) -> str:
    """TIME EVENT SUBJECT DETAIL"""
    fields = {name: value for name, value in event.raw.items() if name not in _ENVELOPE}
    subject = _subject(fields)
    detail = _snapshot(fields) if event.event == "stream.snapshot-taken" else _detail(fields)
    return f"{render.clock(event.at)}  {event.event:<26}  {subject:<24}  {detail}".rstrip()


def _subject(fields: dict[str, Any]) -> str:
    """The subject's id, taken out of the fields; a life is named with its deployment."""
    name = next((key for key in _SUBJECTS if fields.get(key) is not None), None)
    if name is None:
        return render.NOTHING
    shown = str(fields.pop(name))
    generation = fields.pop("generation", None)
    return f"{shown} #{generation}" if generation is not None else shown


def _detail(fields: Mapping[str, Any]) -> str:
    told = []
    for name, value in fields.items():
        if value in (None, "", [], {}):
            continue
        text = _value(name, value)
        told.append(f"{name}={text if len(text) <= _LONG else text[: _LONG - 1] + '…'}")
    return " ".join(told[:_SHOWN])


def _value(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int | float):
        return render.size(value).replace(" ", "")
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _snapshot(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{len(fields.get(name) or ())} {name}" for name in ("deployments", "sessions", "queue"))
